"""The projections of multi-head attention: parameters under the names of torch's layer, and how inputs go through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.nn.inputs import Inputs

BIASED = ("query", "key", "value", "output")
"""The projections that may have a bias."""

_INPUTS = BIASED[:3]
_PROJECTIONS = ("in_proj", "q_proj", "k_proj", "v_proj")


def check_bias(name: str, bias: Any) -> tuple[str, ...]:
    """The projections that have a bias, in the order of :data:`BIASED`, from a bool or from their names."""
    if isinstance(bias, bool):
        return BIASED if bias else ()
    if not isinstance(bias, (tuple, list, set, frozenset)):
        raise TypeError(f"{name} must be a bool or a sequence of names of {list(BIASED)}, got {shown(bias)}")
    for one in bias:
        check.choice(name, one, BIASED)
    if len(set(bias)) != len(bias):
        raise ValueError(f"{name} must hold different names of {list(BIASED)}, got {list(bias)}")
    return tuple(one for one in BIASED if one in bias)


def check_head_dim(width: str, embed_dim: int, count: str, num_heads: int, head_dim: Any) -> int:
    """The size of each head, by default the width shared among the heads; errors use the names of the caller."""
    check.integer(width, embed_dim, minimum=1)
    check.integer(count, num_heads, minimum=1)
    if head_dim is not None:
        return check.integer("head_dim", head_dim, minimum=1)
    if embed_dim % num_heads:
        raise ValueError(f"{count} must divide {width} = {embed_dim}, got {num_heads}: or give a head_dim")
    return embed_dim // num_heads


def adapt_state(module: Projections, state_dict: dict[str, Any], prefix: str, *_loading: Any) -> None:
    """Let a state with packed projections load into separate ones, as HeadParallel makes them, and back."""
    for kind in ("weight", "bias"):
        packed = f"{prefix}in_proj_{kind}"
        parts = [f"{prefix}{name[0]}_proj_{kind}" for name in _INPUTS]
        is_packed = getattr(module, f"in_proj_{kind}") is not None
        widths = module._widths()
        if is_packed and packed not in state_dict and all(name in state_dict for name in parts):
            state_dict[packed] = torch.cat([state_dict.pop(name) for name in parts])
        own = [getattr(module, f"{name[0]}_proj_{kind}") for name in _INPUTS]
        is_separate = all(parameter is not None for parameter in own)
        if is_separate and packed in state_dict and state_dict[packed].shape[0] == sum(widths):
            state_dict.update(zip(parts, state_dict.pop(packed).split(widths), strict=True))


class Projections(nn.Module):
    """The base class of :class:`~relgraph.RelationAttention` with the weights and biases of its four projections.

    The weights of queries, keys and values are one parameter, ``in_proj_weight``, if all inputs have the same width,
    else three; likewise their biases, if all three have one. A missing bias is no parameter: weight decay, sharding
    and loading could change zeros in its place.
    """

    embed_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    kdim: int
    vdim: int
    biased: tuple[str, ...]
    out_proj: nn.Linear
    in_proj_weight: nn.Parameter | None
    q_proj_weight: nn.Parameter | None
    k_proj_weight: nn.Parameter | None
    v_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None
    q_proj_bias: nn.Parameter | None
    k_proj_bias: nn.Parameter | None
    v_proj_bias: nn.Parameter | None

    @property
    def _first_weight(self) -> Tensor:
        """A weight with the layer's dtype and device; ``out_proj`` may be another module, such as a quantized one."""
        weight = self.q_proj_weight if self.in_proj_weight is None else self.in_proj_weight
        assert weight is not None
        return weight

    def _set_sizes(
        self, embed_dim: Any, num_heads: Any, num_kv_heads: Any, head_dim: Any, kdim: Any, vdim: Any
    ) -> None:
        """Check the sizes and keep them."""
        self.head_dim = check_head_dim("embed_dim", embed_dim, "num_heads", num_heads, head_dim)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads % check.integer("num_kv_heads", self.num_kv_heads, minimum=1):
            raise ValueError(f"num_kv_heads must divide num_heads = {num_heads}, got {num_kv_heads}")
        self.kdim = embed_dim if kdim is None else check.integer("kdim", kdim, minimum=1)
        self.vdim = embed_dim if vdim is None else check.integer("vdim", vdim, minimum=1)
        heads = {"num_heads": num_heads, "head_dim": self.head_dim}
        check.parameter_size(3, embed_dim=embed_dim, **heads)
        check.parameter_size(kdim=self.kdim, **heads)
        check.parameter_size(vdim=self.vdim, **heads)
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim

    def _make_projections(self, factory: dict[str, Any]) -> None:
        widths = self._widths()
        shapes: dict[str, tuple[int, ...]] = {}
        for name, width, read in zip(_INPUTS, widths, (self.embed_dim, self.kdim, self.vdim), strict=True):
            shapes[f"{name[0]}_proj_weight"] = (width, read)
            if name in self.biased:
                shapes[f"{name[0]}_proj_bias"] = (width,)
        if self._qkv_same_embed_dim:
            shapes = {name: shape for name, shape in shapes.items() if name.endswith("bias")}
            shapes["in_proj_weight"] = (sum(widths), self.embed_dim)
        if set(_INPUTS) <= set(self.biased):
            shapes = {name: shape for name, shape in shapes.items() if name.endswith("weight")}
            shapes["in_proj_bias"] = (sum(widths),)
        for name in (f"{one}_{kind}" for kind in ("weight", "bias") for one in _PROJECTIONS):
            parameter = nn.Parameter(torch.empty(shapes[name], **factory)) if name in shapes else None
            self.register_parameter(name, parameter)
        self.out_proj = nn.Linear(widths[0], self.embed_dim, bias="output" in self.biased, **factory)
        self._reset_projections()

    def _separate(self) -> None:
        """Turn ``in_proj_weight`` and ``in_proj_bias`` into three parameters each, whose rows are whole heads."""
        for kind in ("weight", "bias"):
            packed = getattr(self, f"in_proj_{kind}")
            if packed is None:
                continue
            for name, part in zip(_INPUTS, packed.detach().split(self._widths()), strict=True):
                own = nn.Parameter(part.clone(), requires_grad=packed.requires_grad)
                self.register_parameter(f"{name[0]}_proj_{kind}", own)
            self.register_parameter(f"in_proj_{kind}", None)
        self._qkv_same_embed_dim = False

    def _reset_projections(self) -> None:
        for name in _PROJECTIONS:
            weight, bias = getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias")
            if weight is not None:
                nn.init.xavier_uniform_(weight)
            if bias is not None:
                nn.init.zeros_(bias)
        if "output" in self.biased:
            nn.init.zeros_(self.out_proj.bias)

    def _widths(self) -> tuple[int, int, int]:
        """How many elements queries, keys and values have in all heads."""
        kv_width = self.num_kv_heads * self.head_dim
        return self.num_heads * self.head_dim, kv_width, kv_width

    def _biases(self) -> Sequence[Tensor | None]:
        """The biases of queries, keys and values."""
        if self.in_proj_bias is not None:
            return self.in_proj_bias.split(self._widths())
        return self.q_proj_bias, self.k_proj_bias, self.v_proj_bias

    def _joined_bias(self) -> Tensor | None:
        """One bias for queries, keys and values together; zeros for those that have none."""
        joined = self.in_proj_bias
        if joined is not None:
            return joined
        biases = self._biases()
        like = next((bias for bias in biases if bias is not None), None)
        if like is None:
            return None
        widths = zip(biases, self._widths(), strict=True)
        return torch.cat([like.new_zeros(width) if bias is None else bias for bias, width in widths])

    def _project_new(self, inputs: Inputs) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Queries, keys and values of this call, without those in a cache."""
        weight = self.in_proj_weight
        if weight is not None and inputs.query is inputs.key and inputs.key is inputs.value:
            joined = linear(inputs.query, weight, self._joined_bias())
            heads = self.num_heads, self.num_kv_heads, self.num_kv_heads
            q, k, v = joined.view(*joined.shape[:-1], sum(heads), self.head_dim).split_with_sizes(heads, -2)
        else:
            weights: Any = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            weights = weights if weight is None else weight.split(self._widths())
            named = zip((inputs.query, inputs.key, inputs.value), weights, self._biases(), strict=True)
            q, k, v = (None if x is None else linear(x, w, b).unflatten(-1, (-1, self.head_dim)) for x, w, b in named)
        assert q is not None
        if inputs.packed:
            return q, k, v
        q = q.transpose(-3, -2)
        k, v = None if k is None else k.transpose(-3, -2), None if v is None else v.transpose(-3, -2)
        if not inputs.unbatched:
            return q, k, v
        return q[None], None if k is None else k[None], None if v is None else v[None]
