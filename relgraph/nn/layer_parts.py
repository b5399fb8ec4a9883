"""What encoder and decoder layers share: residual steps, labels made by a labeler, conversion of torch's layers."""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.arguments.hints import in_place_of_labels
from relgraph.functional.region import whole_length
from relgraph.graphs import Graph
from relgraph.labelers.base import check_made
from relgraph.labels import Labels
from relgraph.nn.cache import KVCache, LayerCache, StackCache, labels_of_new_rows
from relgraph.nn.projections import check_head_dim
from relgraph.nn.table import LabelTable
from relgraph.nn.tables import RelationTables

Activation = str | Callable[[Tensor], Tensor]
"""``"relu"``, ``"gelu"`` or any function of one tensor."""

_Layer = TypeVar("_Layer", bound=nn.Module)
_P = ParamSpec("_P")
_T = TypeVar("_T")
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": functional.relu, "gelu": functional.gelu}


def check_activation(activation: Any) -> Callable[[Tensor], Tensor]:
    """Return ``activation`` as a function."""
    if not isinstance(activation, str):
        if isinstance(activation, type):
            raise TypeError(f"activation must be a string or a function, got the class {activation.__name__}: make one")
        if not callable(activation):
            raise TypeError(f"activation must be a string or a function, got {type(activation).__name__}")
        return cast("Callable[[Tensor], Tensor]", activation)
    return _ACTIVATIONS[check.choice("activation", activation, tuple(_ACTIVATIONS))]


def check_batch_first(batch_first: Any) -> None:
    """Raise unless ``batch_first`` is True."""
    if not check.boolean("batch_first", batch_first):
        raise ValueError("batch_first must be True: inputs have shape [B, N, E], got False")


def check_sizes(d_model: Any, nhead: Any, dim_feedforward: Any, layer_norm_eps: Any, head_dim: Any) -> None:
    """Check sizes under the argument names of torch's layers."""
    size = check_head_dim("d_model", d_model, "nhead", nhead, head_dim)
    check.integer("dim_feedforward", dim_feedforward, minimum=1)
    check.parameter_size(3, d_model=d_model, nhead=nhead, head_dim=size)
    check.parameter_size(d_model=d_model, dim_feedforward=dim_feedforward)
    if check.finite("layer_norm_eps", layer_norm_eps) < 0:
        raise ValueError(f"layer_norm_eps must be at least 0, got {layer_norm_eps}")


def check_labeler(labeler: Any, num_labels: Any, names: Any, tables: Any) -> tuple[Any, Any]:
    """The number and names of the labels, taken from the labeler if there is one; None for a labeler without labels."""
    if labeler is None:
        return num_labels, names
    usable = callable(labeler) and all(hasattr(labeler, name) for name in ("num_labels", "names"))
    if isinstance(labeler, type):
        name = labeler.__name__
        raise TypeError(
            f"labeler must be callable and have num_labels and names, got the class {name}: call it, {name}()"
        )
    if isinstance(labeler, Labels):
        raise TypeError(
            f"labeler must be callable and have num_labels and names, got {type(labeler).__name__}: pass num_labels= "
            "here, and the labels to forward"
        )
    if not usable:
        hint = ": make it a labeler with rg.FromFunction" if callable(labeler) else ""
        raise TypeError(f"labeler must be callable and have num_labels and names, got {type(labeler).__name__}{hint}")
    for name, value in (("num_labels", num_labels), ("names", names)):
        if value is not None:
            raise ValueError(f"{name} must be left out with a labeler, which has its own, got {shown(value)}")
    known: Any = labeler
    if known.num_labels == 0:
        return None, None
    return known.num_labels, None if isinstance(tables, RelationTables) else known.names


def rename_in_errors(names: Mapping[str, str], call: Callable[..., _T], /, *args: Any, **options: Any) -> _T:
    """Call ``call``; in its error messages replace its argument names by our caller's, as ``names`` maps them.

    A kind of table, ``'key'`` or "a key table", is no argument.
    """
    if torch.compiler.is_compiling():
        return call(*args, **options)
    try:
        return call(*args, **options)
    except (TypeError, ValueError, NotImplementedError) as error:
        if error.args and isinstance(error.args[0], str):
            pattern = "|".join(rf"(?<![\w.']){name}\b(?! table)" for name in names)  # not the module relgraph.score
            error.args = (re.sub(pattern, lambda found: names[found[0]], error.args[0]), *error.args[1:])
        raise


_MASKS = (
    ("attn_mask", "mask", "src_mask", "tgt_mask"),
    ("key_padding_mask", "attention_mask", "padding_mask", "src_key_padding_mask", "tgt_key_padding_mask"),
    ("is_causal", "tgt_is_causal"),
)
"""Names of masks of pairs, of keys and of causal order, in layers here and elsewhere."""
_ELSEWHERE = {
    name: f"; relgraph.pyg.RelationConv takes {name}= over edges, relgraph.relation_attention over all pairs"
    for name in ("edge_attr", "edge_key", "edge_value")
}
"""Arguments that other layers and functions of relgraph have."""


def explains_arguments(forward: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate ``forward`` so that the error for another layer's mask name gives the name that this layer uses."""
    known = set(inspect.signature(forward).parameters)

    @functools.wraps(forward)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if not known.issuperset(kwargs) and not torch.compiler.is_compiling():
            name = next(name for name in kwargs if name not in known)
            others = [other for group in _MASKS if name in group for other in group if other in known]
            hint = f"; pass {others[0]}=" if others else ""
            hint += ", True for padding" if others and "padding" in others[0] else ""
            hint += _ELSEWHERE.get(name, "")
            raise TypeError(f"{forward.__qualname__}() got an unexpected keyword argument {name!r}{hint}")
        return forward(*args, **kwargs)

    return called


def check_input(name: str, x: Tensor, layer: Any) -> None:
    """Check the width; if a norm reads ``x`` before the attention can check it, its dtype and device too."""
    attention, norm = layer.self_attn, layer.norm1
    if x.shape[-1] != attention.embed_dim:
        raise ValueError(f"{name} must end in d_model = {attention.embed_dim}, got {list(x.shape)}")
    weight = getattr(norm, "weight", None)
    if not layer.norm_first or weight is None or (weight.is_meta and not x.is_meta):  # offloaded until it is used
        return
    other = weight if attention.in_proj_weight is None else attention.in_proj_weight  # a norm may have another dtype
    if x.dtype not in (weight.dtype, other.dtype) and check.autocast_dtype(x.device.type) is None:
        raise ValueError(f"{name} must have the dtype of the layer, {weight.dtype}, got {x.dtype}")
    check.same_device(**{"the layer": weight, name: x})


_ARGUMENTS = ("labels", "labeler")
"""What a layer calls its labels and its labeler."""


def make_labels(
    labeler: Any,
    labels: Any,
    name: str,
    x: Any,
    cache: KVCache | LayerCache | StackCache | None,
    arguments: tuple[str, str] = _ARGUMENTS,
) -> Any:
    """Return ``labels``, or let the labeler make them from its input or from the lengths of ``x`` and the cache.

    With a cache, labels of a whole sequence are cut to the rows of ``x``. Labels made from lengths are moved to the
    device of ``x``. Errors call labels and labeler by the names of ``arguments``.
    """
    past, length = 0 if cache is None else len(cache), whole_length(_length(name, x))
    if labels is not None and labeler is not None and not isinstance(labels, Labels):
        labels = labels_of(labeler, labels)
    if labels is not None or labeler is None:
        return labels if cache is None else labels_of_new_rows(labels, past, length)
    if past:
        return labels_of_lengths(labeler, [length, past + length], past, x, arguments)
    return labels_of_lengths(labeler, [length], None, x, arguments)


def labels_between(labeler: Any, labels: Any, query: Any, key: Any, cache: Any, q_offset: Any) -> Any:
    """Return ``labels``, or let the labeler make them from its input or from the lengths of queries and keys."""
    grows = isinstance(cache, KVCache) and not cache.static
    if labels is not None or grows:
        return make_labels(labeler, labels, "query", query, cache if grows else None)
    lengths = [whole_length(_length("query", query))]
    if isinstance(cache, KVCache) and len(cache) > 0:
        lengths.append(len(cache))
    elif key is not None and key is not query:
        if isinstance(key, Graph):
            raise TypeError("key must be a Tensor, got Graph: pass it as labels=")
        if isinstance(key, Tensor) and not key.is_floating_point():
            raise ValueError(f"key must have a floating dtype, got {key.dtype}: pass ids or a Graph as labels=")
        lengths.append(whole_length(_length("key", key)))
    return labels_of_lengths(labeler, lengths, q_offset, query)


def _length(name: str, x: Any) -> int:
    """How many rows there are."""
    if check.tensor(name, x).dim() not in (2, 3):
        raise ValueError(f"{name} must have shape [B, N, E], [N, E] or, packed, [T, E], got {list(x.shape)}")
    return x.shape[-2]


def labels_of_lengths(
    labeler: Any, lengths: Sequence[int], q_offset: Any, x: Tensor, arguments: tuple[str, str] = _ARGUMENTS
) -> Labels:
    """The labels that a labeler makes from lengths, on the device of ``x``."""
    labels, name = arguments
    try:
        made = labeler(*lengths, **({} if q_offset is None else {"q_offset": q_offset}))
    except TypeError as error:
        several = _inputs(labeler)
        pass_it = f"call it, {labels}=labeler({several})" if several else f"pass what it reads, {labels}=..."
        raise TypeError(
            f"{labels} must be given, as {name} {shown(labeler)} does not label lengths: {pass_it} ({error})"
        ) from error
    check_made(labeler, made)
    return made.to(x.device) if made.device not in (None, x.device) else made


def labels_of(labeler: Any, given: Any) -> Labels:
    """The labels that a layer's labeler makes from its input, such as a graph or the segment of every token."""
    if isinstance(given, int):
        raise TypeError(f"labels must be Labels, or what {shown(labeler)} reads, got int: the layer knows its length")
    try:
        made = labeler(given)
    except TypeError as error:
        if isinstance(given, Graph):
            raise
        several = _inputs(labeler)
        if several:
            raise TypeError(
                f"labels must be Labels, as {shown(labeler)} reads several inputs, got {type(given).__name__}: "
                f"call it, labels=labeler({several})"
            ) from error
        got = in_place_of_labels(given, or_graph=True)
        own_hint = ": make it a Graph with rg.Graph(edge_index, num_nodes)"
        if str(error).endswith(own_hint) and given.dim() == 2 and given.shape[0] == 2:  # an edge_index, it seems
            got = f"{type(given).__name__}{own_hint}"
        why = "" if got in str(error) else f" ({error})"
        raise TypeError(f"labels must be Labels, or what {shown(labeler)} reads, got {got}{why}") from error
    return check_made(labeler, made)


def _inputs(labeler: Any) -> str:
    """The inputs of a labeler that must be called with several, such as ``height, width``; empty for all others."""
    for part in getattr(labeler, "parts", ()):  # a composition calls all its parts alike
        if found := _inputs(part):
            return found
    try:
        parameters = inspect.signature(labeler).parameters.values()
    except (TypeError, ValueError):
        return ""
    needed = [one.name for one in parameters if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    return ", ".join(needed) if len(needed) > 1 else ""


def residual(x: Tensor, norm_first: bool, *steps: tuple[nn.Module, Callable[[Tensor], Tensor]]) -> Tensor:
    """Apply each step with its norm: x + step(norm(x)), or norm(x + step(x))."""
    for norm, step in steps:
        x = x + step(norm(x)) if norm_first else norm(x + step(x))
    return x


def from_torch_layer(
    cls: type[_Layer], plain: nn.Module, kind: type[nn.Module], new_tables: Any, options: dict[str, Any]
) -> _Layer:
    """Make a ``cls`` with the weights, dropout, activation and order of norms of torch's layer ``plain``."""
    check.choice("new_tables", new_tables, ("zero", "random"))
    if not isinstance(plain, kind):
        raise TypeError(f"layer must be a nn.{kind.__name__}, got {type(plain).__name__}")
    for name in ("head_dim", "attention_bias"):
        if options.get(name) is not None:
            raise ValueError(f"{name} must be left out, as the weights are those of layer, got {shown(options[name])}")
    source: Any = plain
    if not source.self_attn.batch_first:
        raise ValueError(
            "layer must be batch first, as the new one is, got batch_first=False: make one with batch_first=True, load "
            "the state of this one into it, and transpose its inputs"
        )
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
    if new_tables == "zero":
        for module in made.modules():
            if isinstance(module, LabelTable) and not any(table is module for table in _given_tables(options)):
                module._zero()
    return made.train(plain.training)


def _given_tables(options: dict[str, Any]) -> list[nn.Module]:
    """The tables within the RelationTables that a caller passed to be shared."""
    given = (options.get("tables"), options.get("memory_tables"))
    return [part for tables in given if isinstance(tables, RelationTables) for part in tables.modules()]


def layer_repr(layer: Any) -> str:
    """The arguments of a layer that its submodules do not show in ``repr``."""
    parts = [f"norm_first={layer.norm_first}"]
    if not isinstance(layer.activation, nn.Module):
        parts.append(f"activation={getattr(layer.activation, '__name__', repr(layer.activation))}")
    if layer.labeler is not None:
        parts.append(f"labeler={shown(layer.labeler)}")
    return ", ".join(parts)
