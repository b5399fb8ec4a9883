"""What encoder and decoder layers share: checks of their arguments, their attention, and their base class."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.nn.attention import RelationAttention
from relgraph.nn.inputs import Names
from relgraph.nn.made_labels import length_of
from relgraph.nn.plain import check_plain, check_plain_attention, copy_plain, zero_tables
from relgraph.nn.projections import check_head_dim
from relgraph.nn.table import check_label_names
from relgraph.nn.tables import KINDS, check_without_labels

Activation = str | Callable[[Tensor], Tensor]
"""``"relu"``, ``"gelu"``, ``"silu"`` or any function of one tensor."""

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
    argument: str, given: Any, sizes: tuple[int, int], own: Mapping[str, Any], others: Mapping[str, Any], names: Names
) -> RelationAttention:
    """The module ``given`` as ``argument``, without ``own`` options; or one made from ``own`` and ``others``."""
    if given is None:
        own = {"tables": (), **own}
        known = own.get("labeler") is not None or own.get("num_labels") is not None
        check_without_labels(own["tables"], known, argument)
        made = RelationAttention(*sizes, **own, **others)
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
    """Device and dtype of a layer's parameters: as given, or of the attentions passed in, which must have the same."""
    weights = [module._first_weight for module in attentions if isinstance(module, RelationAttention)]
    for weight in weights:
        device, dtype = weight.device if device is None else device, weight.dtype if dtype is None else dtype
    place = check.parameter_place(device, dtype)
    for weight in weights:
        if weight.dtype != place["dtype"] or weight.device.type != torch.device(place["device"]).type:
            raise ValueError(
                f"dtype and device must be those of an attention that is passed in, {weight.dtype} on "
                f"{weight.device}, got {place['dtype']} on {place['device']}"
            )
    return place


class Layer(nn.Module):
    """What encoder and decoder layers share: their conversion from torch's, and what they show."""

    _plain_kind: ClassVar[type[nn.Module]]
    self_attn: RelationAttention
    norm_first: bool
    activation: Any
    norm1: nn.Module
    norm2: nn.Module
    norm3: nn.Module
    dropout1: nn.Module
    dropout2: nn.Module
    dropout3: nn.Module

    def _begin(self, batch_first: Any, norm_first: Any, bias: Any) -> None:
        """Begin a constructor: check options, and let loading compare the names of labels."""
        self.register_load_state_dict_pre_hook(check_label_names)
        if not check.boolean("batch_first", batch_first):
            raise ValueError("batch_first must be True: inputs have shape [B, N, E], got False")
        self.norm_first = check.boolean("norm_first", norm_first)
        check.boolean("bias", bias)

    def _make_steps(
        self, steps: int, sizes: tuple[int, int], dropout: float, activation: Any, eps: float, bias: bool, place: Any
    ) -> None:
        """Make the feed-forward network of these sizes, and a norm and a dropout for each step."""
        width, hidden = sizes
        self.linear1 = nn.Linear(width, hidden, bias=bias, **place)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(hidden, width, bias=bias, **place)
        for step in range(1, steps + 1):
            self.add_module(f"norm{step}", nn.LayerNorm(width, eps=eps, bias=bias, **place))
        for step in range(1, steps + 1):
            self.add_module(f"dropout{step}", nn.Dropout(dropout))
        self.activation = check_activation(activation)

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))

    @classmethod
    def from_plain(cls, layer: nn.Module, *, new_tables: Literal["zero", "random"] = "zero", **options: Any) -> Self:
        """Make a layer with copies of the weights and settings of a layer of torch, and new tables.

        A stack of this layer draws all weights anew unless ``fresh=False``; a stack has a ``from_plain`` of its own.

        Args:
            layer: a :class:`~torch.nn.TransformerEncoderLayer` for an encoder layer, a
                :class:`~torch.nn.TransformerDecoderLayer` for a decoder layer; with ``batch_first=True``.
            new_tables: as in :meth:`~relgraph.RelationAttention.from_plain`.
            options: the keyword-only arguments of the constructor, such as ``labeler``. An attention that you pass
                takes over the projections, and its tables begin as new ones.

        Returns:
            The new layer, with the device, dtype and training mode of ``layer``.

        Raises:
            ValueError: a layer that is not batch first or has norms or biases of another kind, unknown ``new_tables``,
                or an error of the constructor.

        Example:
            >>> plain = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
            >>> layer = rg.RelationEncoderLayer.from_plain(plain, labeler=rg.ClippedDistance(2))
            >>> torch.equal(layer.linear1.weight, plain.linear1.weight)
            True
        """
        check_plain("layer", layer, cls._plain_kind, new_tables)
        source: Any = layer
        check_plain_attention("layer", source.self_attn)
        weight = source.linear1.weight
        make: Any = cls
        made = make(
            source.self_attn.embed_dim, source.self_attn.num_heads, source.linear1.out_features, source.dropout.p,
            bias=source.self_attn.in_proj_bias is not None, device=weight.device, dtype=weight.dtype, **options,
        )  # fmt: skip
        made._copy_plain(layer)
        if new_tables == "zero":
            zero_tables(made, options.get("tables"))
        return made

    def _copy_plain(self, plain: Any) -> None:
        """Take over the weights and settings of torch's layer ``plain``."""
        del self.activation  # a module cannot be replaced by a function
        self.norm_first, self.activation = plain.norm_first, copy.deepcopy(plain.activation)
        copy_plain("layer", self, plain)

    @property
    def labeler(self) -> Any:
        """The labeler of the self-attention, or None."""
        return self.self_attn.labeler

    def extra_repr(self) -> str:
        """The arguments that the submodules do not show."""
        parts = [f"norm_first={self.norm_first}"]
        if not isinstance(self.activation, nn.Module):
            parts.append(f"activation={getattr(self.activation, '__name__', repr(self.activation))}")
        return ", ".join(parts)
