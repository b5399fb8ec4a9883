"""Scores that replace the dot product: of the sum of query and key, or by a map for each label."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.score.base import DOT, Compatibility, applied
from relgraph.score.finished import NAMED, Named

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.2),
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": functional.elu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}
"""The activations of :class:`Additive` by name; ``"leaky_relu"`` has the slope 0.2, as in GAT and GATv2."""


@final
@dataclass(frozen=True)
class Activation(Compatibility):
    """The activation of an additive score without its weight, as kernels know it by its number."""

    name: str

    @property
    def code(self) -> tuple[float, float]:
        """The number after those of functions of finished scores, and no parameter."""
        return float(len(NAMED) + list(ACTIVATIONS).index(self.name)), 0.0


Coded = Named | Activation
"""What kernels know by a number, apart from dot products; a bilinear score is one of mapped queries."""


def encode(score: Coded | None) -> tuple[float, float]:
    """The code by which kernels know a function of finished scores, an activation, or the dot product."""
    return (DOT if score is None else score).code  # pyright: ignore[reportReturnType]


def decode(code: Sequence[float]) -> Coded | None:
    """What kernels know by this code; None for the dot product."""
    at = int(code[0])
    if at < 0:
        return None
    return NAMED[at](code[1]) if at < len(NAMED) else Activation(list(ACTIVATIONS)[at - len(NAMED)])


class Additive(nn.Module, Compatibility):
    """Additive scores: e_ij = w · act(q_i + k_j + a^K[l_ij]) + b[l_ij].

    The scale is 1 by default. The activation acts on the sum of query and key, so a matrix product cannot compute this
    term: every pair costs D activations. Pairs are computed block by block and edges run by run, which bounds the
    memory.

    Args:
        weight: w, ``[D]`` or ``[H, D]``, floating. A parameter is learned with the module; any other tensor, such as a
            computed one, is used unchanged.
        activation: ``"leaky_relu"`` (slope 0.2), ``"tanh"``, ``"relu"``, ``"elu"``, ``"gelu"``, ``"silu"``, or a
            function that acts on each number of a tensor and that torch can differentiate.

    Source: Bahdanau, Cho, Bengio 2015 (tanh); Brody, Alon, Yahav 2022 (GATv2, leaky ReLU).

    Example:
        >>> x, score = torch.randn(1, 2, 4, 8), rg.score.Additive.learned(2, 8)
        >>> z = rg.relation_attention(x, x, x, rg.ClippedDistance(1)(4), torch.randn(3, 8), score=score)
        >>> z.shape, score.weight.shape
        (torch.Size([1, 2, 4, 8]), torch.Size([2, 8]))
    """

    additive = True
    weight_forms = "D | H D"
    function_name = "activation"

    def __init__(self, weight: Tensor, activation: str | Callable[[Tensor], Tensor] = "leaky_relu") -> None:
        super().__init__()
        if check.floating("weight", weight).dim() not in (1, 2):
            raise ValueError(f"weight must have shape [D] or [H, D], got {list(weight.shape)}")
        if isinstance(activation, str):
            check.choice("activation", activation, tuple(ACTIVATIONS))
        elif isinstance(activation, type) or not callable(activation):
            raise TypeError(f"activation must be a name or a function, got {shown(activation)}")
        self.weight, self.activation = weight, activation

    @classmethod
    def learned(
        cls,
        num_heads: int,
        head_dim: int,
        activation: str | Callable[[Tensor], Tensor] = "leaky_relu",
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> Additive:
        """A score with a parameter ``[num_heads, head_dim]``, drawn as Glorot and Bengio 2010 do.

        Args:
            num_heads: H, of queries.
            head_dim: D.
            activation: as of the class.
            device: where the parameter lives.
            dtype: its floating type.

        Returns:
            The score.
        """
        check.integer("num_heads", num_heads, minimum=1)
        check.integer("head_dim", head_dim, minimum=1)
        check.parameter_size(num_heads=num_heads, head_dim=head_dim)
        made = cls(nn.Parameter(torch.empty(num_heads, head_dim, **check.parameter_place(device, dtype))), activation)
        made.reset_parameters()
        return made

    def reset_parameters(self) -> None:
        """Draw the weight again if it is a parameter."""
        if isinstance(self.weight, nn.Parameter):
            nn.init.xavier_uniform_(self.weight if self.weight.dim() == 2 else self.weight[None])

    @property
    def code(self) -> tuple[float, float] | None:
        """The code of the activation if it is one of the names."""
        return Activation(self.activation).code if isinstance(self.activation, str) else None

    @property
    def function(self) -> Callable[[Tensor], Tensor] | None:
        """The activation if it is not one of the names."""
        return None if isinstance(self.activation, str) else self.activation

    def with_weight(self, weight: Tensor) -> Additive:
        return Additive(weight, self.activation)

    def with_function(self, function: nn.Module) -> Additive:
        return Additive(self.weight, function)

    def act(self, x: Tensor) -> Tensor:
        act = ACTIVATIONS[self.activation] if isinstance(self.activation, str) else self.activation
        return applied(act, x, "activation")

    def extra_repr(self) -> str:
        """Shape and activation."""
        return f"{list(self.weight.shape)}, activation={self.activation!r}"


class Bilinear(nn.Module, Compatibility):
    """A map for each label: e_ij = (q_iᵀ W[l_ij] k_j + q_i·a^K[l_ij] + k_j·a^Q[l_ij]) · scale + b[l_ij].

    A pair without a label uses the identity for W. Queries are projected once per label, so use this with few labels.

    Args:
        weight: W, ``[R, D, D]`` or ``[H, R, D, D]``, floating. A parameter is learned with the module; any other tensor
            is used unchanged.

    Source: Hu et al. 2020, "Heterogeneous Graph Transformer" (its W^ATT).

    Example:
        >>> x, score = torch.randn(1, 2, 4, 8), rg.score.Bilinear.learned(3, 2, 8)
        >>> rg.relation_attention(x, x, x, rg.ClippedDistance(1)(4), score=score).shape
        torch.Size([1, 2, 4, 8])
    """

    code = DOT.code
    by_label = True
    weight_forms = "R D D | H R D D"

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        if check.floating("weight", weight).dim() not in (3, 4) or weight.shape[-1] != weight.shape[-2]:
            raise ValueError(f"weight must have shape [R, D, D] or [H, R, D, D], got {list(weight.shape)}")
        self.weight = weight

    @classmethod
    def learned(
        cls, num_labels: int, num_heads: int, head_dim: int, *, device: Any = None, dtype: Any = None
    ) -> Bilinear:
        """A score with a parameter ``[num_heads, num_labels, head_dim, head_dim]`` that begins as the dot product.

        Args:
            num_labels: R.
            num_heads: H, of queries.
            head_dim: D.
            device: where the parameter lives.
            dtype: its floating type.

        Returns:
            The score.
        """
        sizes = {"num_labels": num_labels, "num_heads": num_heads, "head_dim": head_dim}
        for name, size in sizes.items():
            check.integer(name, size, minimum=1)
        check.parameter_size(head_dim, **sizes)
        shape = (num_heads, num_labels, head_dim, head_dim)
        made = cls(nn.Parameter(torch.empty(shape, **check.parameter_place(device, dtype))))
        made.reset_parameters()
        return made

    def reset_parameters(self) -> None:
        """Make every map the identity again if the weight is a parameter."""
        if isinstance(self.weight, nn.Parameter):
            with torch.no_grad():
                self.weight.copy_(torch.eye(self.weight.shape[-1], dtype=self.weight.dtype, device=self.weight.device))

    def with_weight(self, weight: Tensor) -> Bilinear:
        return Bilinear(weight)

    def extra_repr(self) -> str:
        """Shape."""
        return f"{list(self.weight.shape)}"
