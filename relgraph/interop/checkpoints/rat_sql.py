"""RAT-SQL's encoder over question and schema, of the released code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from relgraph.interop.checkpoints.reader import Reader
from relgraph.labelers import SchemaRelations
from relgraph.nn import RelationEncoder
from relgraph.nn.made_labels import check_labeler


class _Reader(Reader):
    maps = ("self_attn.linears.0", "self_attn.linears.1", "self_attn.linears.2", "self_attn.linears.3")
    tables: Mapping[str, str] = MappingProxyType({"key": "relation_k_emb.weight", "value": "relation_v_emb.weight"})
    alone = ("layers.",)
    attention_at = ""
    wanted = ("an encoder, with 'layers.0.relation_k_emb.weight'",)
    norm_first = True
    given: Any

    def _norms(self, at: str, memory: bool) -> tuple[Sequence[str], str | None]:  # noqa: ARG002
        return ("sublayer.0.norm", "sublayer.1.norm"), "norm"

    def _labeler(self, table: str) -> Any:
        """The given labeler, which must fit the rows, or that of the relations of the released code."""
        rows = self.num_labels
        if self.given is not None:
            num_labels, _ = check_labeler(self.given, None, ())
            if num_labels != rows:
                raise ValueError(f"labeler must have as many labels as {table!r} has rows, {rows}, got {num_labels}")
            return self.given
        least = SchemaRelations(0, released=True).num_labels
        clip, rest = divmod(rows - least, SchemaRelations(1, released=True).num_labels - least)
        if clip < 0 or rest:
            raise ValueError(
                f"labeler must be given for {table!r}, which has {rows} rows: those of SchemaRelations are 39, 45, 51, "
                "..., got None"
            )
        return SchemaRelations(clip, released=True)


def from_rat_sql(
    state: Mapping[str, Any],
    *,
    prefix: str = "",
    labeler: Callable[..., Any] | None = None,
    layer_norm_eps: float = 1e-5,
    dropout: float = 0.0,
    leave_out: Sequence[str] = (),
) -> tuple[RelationEncoder, Any]:
    """Read RAT-SQL's encoder; return it with the labeler of its relations.

    Each layer has a key and a value table, ``relation_k_emb`` and ``relation_v_emb``; row r is for relation r of the
    released code, in the same order as in :class:`~relgraph.labelers.SchemaRelations`. The number of heads follows from
    the width of a row.

    Args:
        state: names and tensors, or arrays of numpy.
        prefix: the beginning of the names, before ``layers.0.relation_k_emb.weight``: in a checkpoint of the released
            code it ends in ``"encs_update.encoder."``.
        labeler: makes the labels; by default ``SchemaRelations(clip, released=True)``, with a clip that follows from
            the number of rows: 2 for 51. A checkpoint with other relations, such as the 37 without ``sc_link`` and
            ``cv_link``, needs another labeler.
        layer_norm_eps: the number that norms add to variances; the released code has the default of torch.
        dropout: dropout of the new module.
        leave_out: ``fnmatch`` patterns for names after the prefix of tensors to skip.

    Returns:
        The encoder with copies of the weights, in their dtype and on their device, and its labeler.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: tables of another size than the labeler; a prefix, pattern or tensor that does not
            fit; see the package.

    Example:
        >>> sizes = {"self_attn.linears.0": (16, 16), "feed_forward.w_1": (32, 16), "feed_forward.w_2": (16, 32)}
        >>> sizes |= {f"self_attn.linears.{number}": (16, 16) for number in (1, 2, 3)}
        >>> state = {f"layers.0.{name}.weight": torch.randn(*size) for name, size in sizes.items()}
        >>> state |= {f"layers.0.{name}.bias": torch.randn(size[0]) for name, size in sizes.items()}
        >>> for name in ("layers.0.sublayer.0.norm", "layers.0.sublayer.1.norm", "norm"):
        ...     state |= {f"{name}.weight": torch.ones(16), f"{name}.bias": torch.zeros(16)}
        >>> state |= {f"layers.0.relation_{kind}_emb.weight": torch.randn(51, 4) for kind in "kv"}
        >>> encoder, labeler = rg.interop.checkpoints.from_rat_sql(state)
        >>> schema = rg.labelers.Schema(["singer", "age"], [(0, ["age"])], [["singer"]])
        >>> labeler.num_labels, encoder(torch.randn(1, 4, 16), labels=labeler(schema)).shape
        (51, torch.Size([1, 4, 16]))
    """
    reader = _Reader(state, prefix, leave_out)
    reader.given = labeler
    return reader.build(dropout, layer_norm_eps=layer_norm_eps)
