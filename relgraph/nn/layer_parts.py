"""What encoder and decoder layers share: residual steps, labels made on demand, and the way from torch's layers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch import Tensor, nn
from torch.nn import functional

from relgraph import _check
from relgraph._brief import cut
from relgraph._hints import in_place_of_labels
from relgraph.graphs import Graph
from relgraph.labelers.base import check_made
from relgraph.labels import Labels
from relgraph.nn.cache import KVCache, LayerCache, StackCache
from relgraph.nn.tables import RelationTables

Activation = str | Callable[[Tensor], Tensor]
"""``"relu"``, ``"gelu"`` or any function of one tensor."""

_Layer = TypeVar("_Layer", bound=nn.Module)
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": functional.relu, "gelu": functional.gelu}


def check_activation(activation: Any) -> Callable[[Tensor], Tensor]:
    """The function that ``activation`` names or is."""
    if not isinstance(activation, str):
        if not callable(activation):
            raise TypeError(f"activation must be a string or a function, got {type(activation).__name__}")
        return cast("Callable[[Tensor], Tensor]", activation)
    return _ACTIVATIONS[_check.choice("activation", activation, tuple(_ACTIVATIONS))]


def check_batch_first(batch_first: Any) -> None:
    """Relation layers have the batch first, always."""
    if not _check.boolean("batch_first", batch_first):
        raise ValueError("batch_first must be True: inputs have shape [B, N, E], got False")


def check_sizes(d_model: Any, nhead: Any, dim_feedforward: Any, layer_norm_eps: Any) -> None:
    """Sizes by the names that torch's layers give them."""
    _check.integer("d_model", d_model, minimum=1)
    if d_model % _check.integer("nhead", nhead, minimum=1):
        raise ValueError(f"nhead must divide d_model = {d_model}, got {nhead}")
    _check.integer("dim_feedforward", dim_feedforward, minimum=1)
    if _check.finite("layer_norm_eps", layer_norm_eps) < 0:
        raise ValueError(f"layer_norm_eps must be at least 0, got {layer_norm_eps}")


def check_labeler(labeler: Any, num_labels: Any, names: Any, tables: Any) -> tuple[Any, Any]:
    """Number and names of the labels, of the labeler's where there is one; None without labels to look up."""
    if labeler is None:
        return num_labels, names
    if not (callable(labeler) and all(hasattr(labeler, name) for name in ("num_labels", "names"))):
        raise TypeError(f"labeler must be callable and know num_labels and names, got {type(labeler).__name__}")
    for name, value in (("num_labels", num_labels), ("names", names)):
        if value is not None:
            raise ValueError(f"{name} must be left out beside a labeler, which knows them, got {cut(repr(value))}")
    known: Any = labeler
    if known.num_labels == 0:
        return None, None
    return known.num_labels, None if isinstance(tables, RelationTables) else known.names


def made_labels(labeler: Any, labels: Any, name: str, x: Any, cache: KVCache | LayerCache | StackCache | None) -> Any:
    """The labels that were given, or those that the labeler makes: of a graph, or of ``x``'s rows and all keys before.

    Raw ids are for layers without a labeler.

    Labels that the labeler writes out elsewhere go to the device of ``x``.
    """
    if _check.tensor(name, x).dim() not in (2, 3):
        raise ValueError(f"{name} must have shape [B, N, E], [N, E] or, packed, [T, E], got {list(x.shape)}")
    if isinstance(labels, Graph) and labeler is not None:
        return check_made(labeler, labeler(labels))
    if labels is not None and labeler is not None and not isinstance(labels, Labels):
        got = in_place_of_labels(labels, or_graph=True)
        # Raw ids too: what the labeler reads, such as [B, N] of segments, is taken for [N, N] ids where B is N.
        raise TypeError(f"labels must be Labels, a Graph or None for a layer with a labeler, got {got}")
    if labels is not None or labeler is None:
        return labels
    past, length = 0 if cache is None else len(cache), x.shape[-2]
    made = check_made(labeler, labeler(length, past + length, q_offset=past) if past else labeler(length))
    return made.to(x.device) if made.device not in (None, x.device) else made


def residual(x: Tensor, norm_first: bool, *steps: tuple[nn.Module, Callable[[Tensor], Tensor]]) -> Tensor:
    """Step after step, each with its norm: x + step(norm(x)), or norm(x + step(x))."""
    for norm, step in steps:
        x = x + step(norm(x)) if norm_first else norm(x + step(x))
    return x


def like(cls: type[_Layer], plain: nn.Module, kind: type[nn.Module], options: dict[str, Any]) -> _Layer:
    """A ``cls`` with the weights, dropout, activation and order of norms of ``plain``, one of torch's layers."""
    if not isinstance(plain, kind):
        raise TypeError(f"layer must be a nn.{kind.__name__}, got {type(plain).__name__}")
    source: Any = plain
    weight = source.linear1.weight
    made: Any = cls(
        source.self_attn.embed_dim, source.self_attn.num_heads, source.linear1.out_features, source.dropout.p,
        copy.deepcopy(source.activation), source.norm1.eps, True, source.norm_first, source.linear1.bias is not None,
        weight.device, weight.dtype, **options,
    )  # fmt: skip
    made.load_state_dict(plain.state_dict(), strict=False)
    for name, module in plain.named_modules():
        mine = made.get_submodule(name)
        if isinstance(module, nn.Dropout):
            mine.p = module.p
        elif isinstance(module, nn.MultiheadAttention):
            mine.dropout = module.dropout
        elif isinstance(module, nn.LayerNorm):
            mine.eps = module.eps
    return made.train(plain.training)


def describe(layer: Any) -> str:
    """The part of ``repr`` that the parts of a layer do not show."""
    parts = [f"norm_first={layer.norm_first}"]
    if not isinstance(layer.activation, nn.Module):
        parts.append(f"activation={getattr(layer.activation, '__name__', repr(layer.activation))}")
    if layer.labeler is not None:
        parts.append(f"labeler={cut(repr(layer.labeler))}")
    return ", ".join(parts)
