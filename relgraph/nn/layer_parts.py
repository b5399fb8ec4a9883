"""What encoder and decoder layers share: their attention, residual steps, conversion of torch's layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.nn.attention import RelationAttention
from relgraph.nn.inputs import Names
from relgraph.nn.made_labels import length_of
from relgraph.nn.projections import check_head_dim
from relgraph.nn.table import LabelTable
from relgraph.nn.tables import KINDS, RelationTables

Activation = str | Callable[[Tensor], Tensor]
"""``"relu"``, ``"gelu"``, ``"silu"`` or any function of one tensor."""

_Layer = TypeVar("_Layer", bound=nn.Module)
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}


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


def check_sizes(d_model: Any, nhead: Any, dim_feedforward: Any, layer_norm_eps: Any, attention: Any) -> None:
    """Check sizes under the argument names of torch's layers; an attention that is passed in has its own head size."""
    size = check_head_dim("d_model", d_model, "nhead", nhead, getattr(attention, "head_dim", None))
    check.integer("dim_feedforward", dim_feedforward, minimum=1)
    check.parameter_size(3, d_model=d_model, nhead=nhead, head_dim=size)
    check.parameter_size(d_model=d_model, dim_feedforward=dim_feedforward)
    if check.finite("layer_norm_eps", layer_norm_eps) < 0:
        raise ValueError(f"layer_norm_eps must be at least 0, got {layer_norm_eps}")


def check_input(name: str, x: Tensor, layer: Any) -> None:
    """Check the width; if a norm reads ``x`` before the attention can check it, its dtype and device too."""
    attention, norm = layer.self_attn, layer.norm1
    length_of(name, x)
    if x.shape[-1] != attention.embed_dim:
        raise ValueError(f"{name} must end in d_model = {attention.embed_dim}, got {list(x.shape)}")
    weight = getattr(norm, "weight", None)
    if not layer.norm_first or weight is None or (weight.is_meta and not x.is_meta):  # offloaded until it is used
        return
    other = attention._first_weight  # a norm may have another dtype
    if x.dtype not in (weight.dtype, other.dtype) and check.autocast_dtype(x.device.type) is None:
        raise ValueError(f"{name} must have the dtype of the layer, {weight.dtype}, got {x.dtype}")
    check.same_device(**{"the layer": weight, name: x})


def residual(x: Tensor, norm_first: bool, *steps: tuple[nn.Module, Callable[[Tensor], Tensor]]) -> Tensor:
    """Apply each step with its norm: x + step(norm(x)), or norm(x + step(x))."""
    for norm, step in steps:
        x = x + step(norm(x)) if norm_first else norm(x + step(x))
    return x


def make_attention(
    argument: str,
    given: Any,
    sizes: tuple[int, int],
    own: Mapping[str, Any],
    others: Mapping[str, Any],
    names: Names,
) -> RelationAttention:
    """The attention of a layer: the module that was passed as ``argument``, or one made from the layer's options.

    Args:
        argument: what the layer calls the module.
        given: the module, or None.
        sizes: ``d_model`` and ``nhead`` of the layer, which the module must share.
        own: the options from which the layer makes an attention; a given module has its own, so they must be absent.
        others: further arguments of an attention that the layer makes.
        names: what errors of the attention call its inputs.
    """
    if given is None:
        made = RelationAttention(*sizes, **{"tables": KINDS[:2], **own}, **others)
    else:
        made = given
        if not isinstance(made, RelationAttention):
            raise TypeError(f"{argument} must be a RelationAttention or None, got {type(made).__name__}")
        for name, value in own.items():
            if value is not None and not (name == "tables" and value == KINDS[:2]):
                raise ValueError(f"{name} must be left out with {argument}, which has its own, got {shown(value)}")
        widths = (made.embed_dim, made.kdim, made.vdim)
        if widths != sizes[:1] * 3 or made.num_heads != sizes[1]:
            raise ValueError(
                f"{argument} must have embed_dim = kdim = vdim = d_model = {sizes[0]} and num_heads = nhead = "
                f"{sizes[1]}, got {widths[0]}, {widths[1]}, {widths[2]} and {made.num_heads}"
            )
    made._names = names
    return made


def check_place(device: Any, dtype: Any, *attentions: Any) -> dict[str, Any]:
    """Device and dtype of a layer's parameters: as given, or those of the first attention that was passed in.

    Raises:
        ValueError: an attention that was passed in has another dtype, or is on another kind of device.
    """
    for module in attentions:
        if isinstance(module, RelationAttention):
            weight = module._first_weight
            device, dtype = weight.device if device is None else device, weight.dtype if dtype is None else dtype
    place = check.parameter_place(device, dtype)
    for module in attentions:
        if isinstance(module, RelationAttention):
            weight = module._first_weight
            if weight.dtype != place["dtype"] or weight.device.type != torch.device(place["device"]).type:
                raise ValueError(
                    f"dtype and device must be those of an attention that is passed in, {weight.dtype} on "
                    f"{weight.device}, got {place['dtype']} on {place['device']}"
                )
    return place


def from_torch_layer(
    cls: type[_Layer], plain: nn.Module, kind: type[nn.Module], new_tables: Any, options: dict[str, Any]
) -> _Layer:
    """Make a ``cls`` with the weights, dropout, activation and order of norms of torch's layer ``plain``."""
    check.choice("new_tables", new_tables, ("zero", "random"))
    if not isinstance(plain, kind):
        raise TypeError(f"layer must be a nn.{kind.__name__}, got {type(plain).__name__}")
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
    state, new = plain.state_dict(), made.state_dict()
    for name, tensor in state.items():
        if name not in new or new[name].shape != tensor.shape:
            got = "no such parameter" if name not in new else list(new[name].shape)
            raise ValueError(
                f"an attention that is passed in must have the projections of layer: {name} of shape "
                f"{list(tensor.shape)}, got {got}"
            )
    made.load_state_dict(state, strict=False)
    for name, module in plain.named_modules():
        mine = made.get_submodule(name)
        if isinstance(module, nn.Dropout):
            mine.p = module.p
        elif isinstance(module, nn.MultiheadAttention):
            mine.dropout = module.dropout
        elif isinstance(module, nn.LayerNorm):
            mine.eps = module.eps
    if new_tables == "zero":
        for tables in made.modules():
            if isinstance(tables, RelationTables) and not tables.shared:
                for table in tables.modules():
                    if isinstance(table, LabelTable):
                        table._zero()
    return made.train(plain.training)


def layer_repr(layer: Any) -> str:
    """The arguments of a layer that its submodules do not show in ``repr``."""
    parts = [f"norm_first={layer.norm_first}"]
    if not isinstance(layer.activation, nn.Module):
        parts.append(f"activation={getattr(layer.activation, '__name__', repr(layer.activation))}")
    return ", ".join(parts)
