"""Compatibility functions other than the scaled dot product, for the argument ``score=``.

``Softcap``, ``LeakyReLU`` or any function of one tensor changes each finished score, after scale and bias and before
masks. ``Additive`` and ``Bilinear`` replace the dot product. The paper names nonlinear compatibility functions as
future work.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.arguments.public import lists_public

__all__ = ["Additive", "Bilinear", "LeakyReLU", "Softcap"]
__dir__ = lists_public(globals())

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
class Softcap:
    """Bound every score smoothly: e becomes ``cap · tanh(e / cap)``.

    Args:
        cap: the bound, positive. Scores stay within ``(-cap, cap)``.

    Source: Bello et al. 2016, "Neural Combinatorial Optimization with Reinforcement Learning" (logit clipping); Gemma
    Team 2024 (Gemma 2) for attention.

    Raises:
        TypeError: a cap that is not a number.
        ValueError: a cap that is not positive and finite.

    Example:
        >>> x = torch.randn(1, 2, 4, 8)
        >>> rg.relation_attention(x, x, x, None, score=rg.score.Softcap(50.0)).shape
        torch.Size([1, 2, 4, 8])
    """

    cap: float

    def __post_init__(self) -> None:
        if check.finite("cap", self.cap) <= 0.0:
            raise ValueError(f"cap must be positive, got {self.cap}")

    def __call__(self, scores: Tensor) -> Tensor:
        """Change finished scores.

        Args:
            scores: ``[...]``, floating.

        Returns:
            The changed scores, ``[...]``.

        Raises:
            TypeError: scores that are not a tensor.
            ValueError: scores that are not floating.
        """
        check.floating("scores", scores)
        return torch.tanh(scores / self.cap) * self.cap

    def _apply_(self, scores: Tensor) -> Tensor:
        """Change scores in place; -inf stays."""
        hidden = scores == float("-inf")
        return scores.div_(self.cap).tanh_().mul_(self.cap).masked_fill_(hidden, float("-inf"))

    def _derivative_(self, finished: Tensor) -> Tensor:
        """Turn finished scores into the derivative there, in place; 0 at -inf."""
        return finished.div_(self.cap).square_().neg_().add_(1.0).clamp_(min=0.0)


@final
@dataclass(frozen=True)
class LeakyReLU:
    """Scale negative scores by a slope: e becomes ``max(e, 0) + negative_slope · min(e, 0)``.

    With a bias table for edge types and queries and keys of two numbers, (u_i, 1) and (1, v_j), this is GAT's score
    LeakyReLU(u_i + v_j + b[l_ij]).

    Args:
        negative_slope: the slope, finite and at least 0; 0.2 in GAT.

    Source: Veličković et al. 2018, "Graph Attention Networks".

    Raises:
        TypeError: a slope that is not a number.
        ValueError: a slope that is negative or not finite.

    Example:
        >>> x = torch.randn(1, 2, 4, 8)
        >>> rg.relation_attention(x, x, x, None, score=rg.score.LeakyReLU()).shape
        torch.Size([1, 2, 4, 8])
    """

    negative_slope: float = 0.2

    def __post_init__(self) -> None:
        if check.finite("negative_slope", self.negative_slope) < 0.0:
            raise ValueError(f"negative_slope must be at least 0, got {self.negative_slope}")

    def __call__(self, scores: Tensor) -> Tensor:
        """Change finished scores.

        Args:
            scores: ``[...]``, floating.

        Returns:
            The changed scores, ``[...]``.

        Raises:
            TypeError: scores that are not a tensor.
            ValueError: scores that are not floating.
        """
        check.floating("scores", scores)
        return functional.leaky_relu(scores, self.negative_slope)

    def _apply_(self, scores: Tensor) -> Tensor:
        """Change scores in place; -inf stays."""
        if self.negative_slope > 0.0:
            return functional.leaky_relu_(scores, self.negative_slope)
        hidden = scores == float("-inf")
        return scores.clamp_(min=0.0).masked_fill_(hidden, float("-inf"))

    def _derivative_(self, finished: Tensor) -> Tensor:
        """Turn finished scores into the derivative there, in place; 0 counts as negative, as in torch."""
        negative = finished <= 0.0
        return finished.fill_(1.0).masked_fill_(negative, self.negative_slope)


class Additive(nn.Module):
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

    Raises:
        TypeError: a weight that is not a tensor, or an activation that is neither a name nor a function.
        ValueError: a weight of another shape, or an unknown name.

    Example:
        >>> x, score = torch.randn(1, 2, 4, 8), rg.score.Additive.learned(2, 8)
        >>> z = rg.relation_attention(x, x, x, rg.ClippedDistance(1)(4), torch.randn(3, 8), score=score)
        >>> z.shape, score.weight.shape
        (torch.Size([1, 2, 4, 8]), torch.Size([2, 8]))
    """

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

        Raises:
            TypeError: sizes that are not ints.
            ValueError: sizes below 1, or a parameter of more than 2³¹ numbers.
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

    def _act(self, x: Tensor) -> Tensor:
        """The activation of every number."""
        act = ACTIVATIONS[self.activation] if isinstance(self.activation, str) else self.activation
        return applied(act, x, "activation")

    def extra_repr(self) -> str:
        """Shape and activation."""
        return f"{list(self.weight.shape)}, activation={self.activation!r}"


class Bilinear(nn.Module):
    """A map for each label: e_ij = (q_iᵀ W[l_ij] k_j + q_i·a^K[l_ij] + k_j·a^Q[l_ij]) · scale + b[l_ij].

    A pair without a label uses the identity for W. Queries are projected once per label, so use this with few labels.

    Args:
        weight: W, ``[R, D, D]`` or ``[H, R, D, D]``, floating. A parameter is learned with the module; any other tensor
            is used unchanged.

    Source: Hu et al. 2020, "Heterogeneous Graph Transformer" (its W^ATT).

    Raises:
        TypeError: a weight that is not a tensor.
        ValueError: a weight of another shape.

    Example:
        >>> x, score = torch.randn(1, 2, 4, 8), rg.score.Bilinear.learned(3, 2, 8)
        >>> rg.relation_attention(x, x, x, rg.ClippedDistance(1)(4), score=score).shape
        torch.Size([1, 2, 4, 8])
    """

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

        Raises:
            TypeError: sizes that are not ints.
            ValueError: sizes below 1, or a parameter of more than 2³¹ numbers.
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

    def extra_repr(self) -> str:
        """Shape."""
        return f"{list(self.weight.shape)}"


Named = Softcap | LeakyReLU
"""Functions of finished scores that blocks and kernels know by name; any other is differentiated by torch."""

Score = Softcap | LeakyReLU | Additive | Bilinear | Callable[[Tensor], Tensor]
"""What ``score=`` accepts, apart from None for the dot product."""


def applied(function: Callable[[Tensor], Tensor], x: Tensor, name: str) -> Tensor:
    """``function(x)``.

    Raises:
        TypeError: a result that is not a tensor.
        ValueError: a result of another shape or dtype, or one that does not depend on ``x``.
    """
    y = function(x)
    if not isinstance(y, Tensor):
        raise TypeError(f"{name} must give a tensor, got {type(y).__name__}")
    if y.shape != x.shape or y.dtype != x.dtype:
        wanted, got = f"{x.dtype} {list(x.shape)}", f"{y.dtype} {list(y.shape)}"
        raise ValueError(f"{name} must keep shape and dtype, {wanted}, got {got}")
    if torch.is_grad_enabled() and x.requires_grad and not y.requires_grad:
        raise ValueError(f"{name} must be differentiable by torch, got a result without a gradient")
    return y


def module_of(score: Any) -> nn.Module | None:
    """The module that a user gave as a function of scores or as an activation; None if there is none."""
    function = score.activation if isinstance(score, Additive) else score
    return function if isinstance(function, nn.Module) and not isinstance(function, (Additive, Bilinear)) else None


def tensors_of(score: Any) -> list[Tensor]:
    """The tensors of a score that may need a gradient: its weight, and the parameters of a module that a user gave."""
    if score is None:
        return []
    module = module_of(score)
    weights = [score.weight] if isinstance(score, (Additive, Bilinear)) else []
    return weights if module is None else [*weights, *module.parameters()]


def with_tensors(score: Any, tensors: Sequence[Tensor]) -> Any:
    """The same score with other tensors, in the order of :func:`tensors_of`."""
    if not tensors:
        return score
    if isinstance(score, (Additive, Bilinear)):
        return with_parameters(with_weight(score, tensors[0]), tensors[1:])
    return with_parameters(score, tensors)


def with_weight(score: Additive | Bilinear, weight: Tensor) -> Additive | Bilinear:
    """The same score with another weight."""
    return Bilinear(weight) if isinstance(score, Bilinear) else Additive(weight, score.activation)


def with_module(score: Any, module: nn.Module) -> Any:
    """The same score with another module as its function."""
    return Additive(score.weight, module) if isinstance(score, Additive) else module


def with_parameters(score: Any, parameters: Sequence[Tensor]) -> Any:
    """The same score, whose module computes with other tensors for its parameters, in the order of ``parameters()``."""
    module = module_of(score)
    if module is None:
        return score
    others = {id(old): new for old, new in zip(module.parameters(), parameters, strict=True)}
    return with_module(score, copied(module, lambda x: others[id(x)]))


def copied(module: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    """A copy of a module that computes with ``change`` of each parameter, and shares all else."""
    made = copy.copy(module)
    own = {name: None if x is None else change(x) for name, x in module._parameters.items()}
    inner = {name: None if x is None else copied(x, change) for name, x in module._modules.items()}
    made.__dict__.update(_parameters=own, _modules=inner)  # past the check for nn.Parameter
    return made


def finish(score: Any, scores: Tensor) -> Tensor:
    """Finished scores, after a function of scores if there is one; a named one keeps -inf."""
    if score is None or isinstance(score, (Additive, Bilinear)):
        return scores
    finished = applied(score, scores, "score")
    moves = isinstance(score, Softcap) or (isinstance(score, LeakyReLU) and score.negative_slope == 0.0)
    return torch.where(scores == float("-inf"), scores, finished) if moves else finished


_NAMED = (Softcap, LeakyReLU)


def encode(score: Any) -> list[float]:
    """A named function as two numbers for the primitive: which one (-1 for none) and its parameter."""
    if isinstance(score, Softcap):
        return [0.0, score.cap]
    return [1.0, score.negative_slope] if isinstance(score, LeakyReLU) else [-1.0, 0.0]


def decode(numbers: list[float]) -> Named | None:
    """The named function of :func:`encode`."""
    return None if numbers[0] < 0 else _NAMED[int(numbers[0])](numbers[1])
