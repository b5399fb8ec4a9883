"""BERT with ``relative_key`` or ``relative_key_query``, and RoBERTa and ELECTRA, whose encoders have the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import Tensor

from relgraph.arguments import check
from relgraph.interop.bert import KINDS, tables_of
from relgraph.interop.checkpoints.reader import Reader
from relgraph.labelers import ClippedDistance
from relgraph.nn import RelationAttention, RelationEncoder
from relgraph.nn.layer_parts import Activation


class _Reader(Reader):
    """The names of BERT after those of the model."""

    maps = ("self.query", "self.key", "self.value", "output.dense")
    tables: Mapping[str, str] = MappingProxyType({"key": "self.distance_embedding.weight"})
    linears = ("intermediate.dense", "output.dense")
    alone = ("layer.",)
    attention_at = "attention."
    wanted = ("an attention, with 'self.query.weight'", "an encoder, with 'layer.0.attention.self.query.weight'")
    kind: str

    def _norms(self, at: str, memory: bool) -> tuple[Sequence[str], str | None]:  # noqa: ARG002
        return ("attention.output.LayerNorm", "output.LayerNorm"), None

    def _tables(self, at: str) -> dict[str, Tensor]:
        return tables_of(super()._tables(at)["key"], self.kind)[0]


def from_bert(
    state: Mapping[str, Any],
    *,
    position_embedding_type: str,
    prefix: str = "",
    activation: Activation = "gelu",
    layer_norm_eps: float = 1e-12,
    dropout: float = 0.0,
    leave_out: Sequence[str] = (),
) -> tuple[RelationAttention | RelationEncoder, ClippedDistance]:
    """Read BERT's encoder, or one attention of it; return it with the labeler of its distances.

    The names are those of transformers 4. ``distance_embedding`` has a row for each i - j, query minus key, from
    -(P - 1) to P - 1; here rows count j - i, so they are flipped. The number of heads follows from the width of a row.
    With ``relative_key_query`` the query table begins as a copy of the key table; further training may change each.

    Args:
        state: names and tensors, or arrays of numpy.
        position_embedding_type: ``"relative_key"`` or ``"relative_key_query"``, as in the configuration.
        prefix: the beginning of the names. If ``layer.0.attention.self.query.weight`` follows it, as after
            ``"bert.encoder."``, the result is a :class:`~relgraph.RelationEncoder`. If ``self.query.weight`` follows
            it, as after ``"bert.encoder.layer.0.attention."``, the result is a :class:`~relgraph.RelationAttention`,
            without the norm after it: leave out ``"output.LayerNorm.*"``.
        activation: ``hidden_act`` of the configuration.
        layer_norm_eps: ``layer_norm_eps`` of the configuration.
        dropout: dropout of the new module.
        leave_out: ``fnmatch`` patterns for names after the prefix of tensors to skip.

    Returns:
        The module with copies of the weights, in their dtype and on their device, and its labeler.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a prefix, pattern or tensor that does not fit; see the package.

    Example:
        >>> names = ("self.query", "self.key", "self.value", "output.dense")
        >>> state = {f"attention.{name}.weight": torch.randn(16, 16) for name in names}
        >>> state |= {f"attention.{name}.bias": torch.randn(16) for name in names}
        >>> state["attention.self.distance_embedding.weight"] = torch.randn(9, 4)           # 2 · 5 - 1 rows, 4 heads
        >>> layer, labeler = rg.interop.checkpoints.from_bert(
        ...     state, position_embedding_type="relative_key", prefix="attention."
        ... )
        >>> labeler, layer(torch.randn(1, 5, 16), labels=labeler(5)).shape
        (ClippedDistance(4), torch.Size([1, 5, 16]))
    """
    check.choice("position_embedding_type", position_embedding_type, KINDS)
    reader = _Reader(state, prefix, leave_out)
    reader.kind = position_embedding_type
    return reader.build(dropout, activation=activation, layer_norm_eps=layer_norm_eps)
