"""BERT's relative positions: the order of their rows, and an encoder from a state dict that has them.

- :func:`~relgraph.interop.bert.from_state_dict`: the encoder of BERT, RoBERTa or ELECTRA with ``relative_key`` or
  ``relative_key_query``, which transformers 5 no longer runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.arguments.public import lists_public
from relgraph.labelers import ClippedDistance
from relgraph.nn import RelationAttention, RelationEncoder, RelationEncoderLayer
from relgraph.nn.layer_parts import Activation
from relgraph.nn.stack import MOST_LAYERS

__all__ = ["from_state_dict"]
__dir__ = lists_public(globals())

KEY, KEY_QUERY = KINDS = ("relative_key", "relative_key_query")
"""The values of ``position_embedding_type`` with a table."""

MAPS = tuple(f"attention.self.{name}" for name in ("query", "key", "value"))
TABLE = "attention.self.distance_embedding.weight"
NAMES = {
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "linear1",
    "output.dense": "linear2",
    "output.LayerNorm": "norm2",
}
"""The other parts of a layer, there and here; each has a weight and a bias."""


def tables_of(rows: Tensor, kind: str) -> tuple[dict[str, Tensor], ClippedDistance]:
    """The tables of an attention, and their labeler.

    Args:
        rows: ``distance_embedding``, ``[2P - 1, D]``: a row for each i - j, query minus key, from -(P - 1) to P - 1.
        kind: one of ``KINDS``; with the second, the query table begins as a copy of the key table.
    """
    labeler = ClippedDistance(rows.shape[0] // 2)
    rows = labeler.rows_from(rows, order="query-key")
    return {"key": rows} | ({"query": rows} if kind == KEY_QUERY else {}), labeler


def from_state_dict(
    state: Mapping[str, Tensor],
    *,
    position_embedding_type: str,
    prefix: str = "",
    activation: Activation = "gelu",
    layer_norm_eps: float = 1e-12,
    dropout: float = 0.0,
) -> tuple[RelationEncoder, ClippedDistance]:
    """Make the encoder of BERT, RoBERTa or ELECTRA from a state dict; return it with the labeler of its distances.

    The names are those of transformers 4. ``distance_embedding`` has a row for each i - j, query minus key; here rows
    count j - i, so they are flipped. The number of heads follows from the width of rows. With ``relative_key_query``
    the query table begins as a copy of the key table; further training may change each.

    Args:
        state: names and tensors.
        position_embedding_type: ``"relative_key"`` or ``"relative_key_query"``, as in the configuration.
        prefix: the beginning of the names, before ``layer.0.attention.self.query.weight``: ``"bert.encoder."``.
        activation: ``hidden_act`` of the configuration.
        layer_norm_eps: ``layer_norm_eps`` of the configuration.
        dropout: dropout of the new module.

    Returns:
        The encoder with copies of the weights, in their dtype and on their device, and its labeler.

    Raises:
        ValueError: a tensor that is missing, that has another shape, or that the encoder has no place for.

    Example:
        >>> sizes = {f"attention.self.{name}": (16, 16) for name in ("query", "key", "value")}
        >>> sizes |= {"attention.output.dense": (16, 16), "intermediate.dense": (32, 16), "output.dense": (16, 32)}
        >>> sizes |= {"attention.output.LayerNorm": (16,), "output.LayerNorm": (16,)}
        >>> state = {f"layer.0.{name}.weight": torch.randn(size) for name, size in sizes.items()}
        >>> state |= {f"layer.0.{name}.bias": torch.randn(size[0]) for name, size in sizes.items()}
        >>> state["layer.0.attention.self.distance_embedding.weight"] = torch.randn(9, 4)  # 2 · 5 - 1 rows, 4 heads
        >>> encoder, labeler = rg.interop.bert.from_state_dict(state, position_embedding_type="relative_key")
        >>> labeler, encoder(torch.randn(1, 5, 16)).shape
        (ClippedDistance(4), torch.Size([1, 5, 16]))
    """
    check.choice("position_embedding_type", position_embedding_type, KINDS)
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise TypeError(f"state must be a mapping of names to tensors, got {shown(state)}")
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a string, got {type(prefix).__name__}")
    left = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    depth = len({match[1] for name in left if (match := re.match(r"layer\.(\d+)\.", name))})
    if not 1 <= depth <= MOST_LAYERS:
        raise ValueError(f"state must have 1 to {MOST_LAYERS} layers under prefix = {shown(prefix)}, got {depth}")

    def get(name: str, dim: int) -> Tensor:
        if name not in left:
            raise ValueError(f"state must have a tensor named {prefix + name!r}, got none")
        tensor = check.floating(f"state[{prefix + name!r}]", left[name])
        if tensor.dim() != dim or 0 in tensor.shape:
            raise ValueError(f"state[{prefix + name!r}] must have {dim} dimensions, got shape {list(tensor.shape)}")
        return tensor

    table = get(f"layer.0.{TABLE}", 2)  # [2P - 1, D]
    inner, width = get("layer.0.intermediate.dense.weight", 2).shape
    place: Any = {"device": table.device, "dtype": table.dtype}
    heads, rest = divmod(width, table.shape[1])
    if rest or table.shape[0] % 2 == 0:
        raise ValueError(
            f"distance_embedding of state must have 2P - 1 rows whose width divides {width}, got {list(table.shape)}"
        )
    tables, labeler = tables_of(table, position_embedding_type)
    attention = RelationAttention(width, heads, dropout, labeler=labeler, tables=tuple(tables), **place)
    options: Any = {"activation": activation, "layer_norm_eps": layer_norm_eps}
    layer = RelationEncoderLayer(width, heads, inner, dropout, attention=attention, **options)
    encoder = RelationEncoder(layer, depth, fresh=False)
    parameters = dict(encoder.named_parameters())

    def fill(there: str, *here: Tensor) -> None:
        for ours in here:
            theirs = get(there, ours.dim())
            if theirs.shape != ours.shape or theirs.dtype != ours.dtype or theirs.device != ours.device:
                raise ValueError(
                    f"state[{prefix + there!r}] must have shape {list(ours.shape)}, {ours.dtype} on {ours.device}, "
                    f"got {list(theirs.shape)}, {theirs.dtype} on {theirs.device}"
                )
            ours.copy_(labeler.rows_from(theirs) if there.endswith(TABLE) else theirs)
        del left[there]

    with torch.no_grad():
        for number in range(depth):
            at, ours = f"layer.{number}.", f"layers.{number}."
            fill(at + TABLE, *(parameters[f"{ours}self_attn.tables.{name}.rows"] for name in tables))
            for kind in ("weight", "bias"):
                joined = parameters[f"{ours}self_attn.in_proj_{kind}"].chunk(3)
                for name, part in zip(MAPS, joined, strict=True):
                    fill(f"{at}{name}.{kind}", part)
                for theirs, name in NAMES.items():
                    fill(f"{at}{theirs}.{kind}", parameters[f"{ours}{name}.{kind}"])
    if left:
        raise ValueError(f"state must have no other tensors under prefix = {shown(prefix)}, got {min(left)!r}")
    return encoder, labeler
