"""What each way to compute scores answers for itself: its tensors, its code for kernels, how it finishes scores."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Self, final

import torch
from torch import Tensor, nn


class Compatibility:
    """How a call computes scores. It answers for itself, so that implementations need not know each class.

    Attributes:
        code: the number by which kernels know it, and its parameter; None if they do not know it.
        additive: whether query and key are added before an activation, not multiplied.
        by_label: whether each label maps the query before the product.
        weight_forms: the shapes of ``weight``, which replaces the dot product, as names of axes; empty without one.
        function: what a user gave to change numbers, a function or a module; None without one.
        function_name: the argument that it was given as.
    """

    code: tuple[float, float] | None = None
    additive = False
    by_label = False
    weight_forms = ""
    function: Callable[[Tensor], Tensor] | None = None
    function_name = "score"
    weight: Tensor

    @property
    def replaces_dot(self) -> bool:
        """Whether it replaces the dot product; else it changes finished scores, or nothing."""
        return bool(self.weight_forms)

    def tensors(self) -> list[Tensor]:
        """List the tensors that may need a gradient.

        Returns:
            The weight, then the parameters of a module that the user gave.
        """
        weights = [self.weight] if self.weight_forms else []
        return [*weights, *self.function.parameters()] if isinstance(self.function, nn.Module) else weights

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """Make the same score with other tensors.

        Args:
            tensors: in the order of :meth:`tensors`.

        Returns:
            The score; a module of the user is copied, and shares all else.
        """
        made, rest = (self.with_weight(tensors[0]), tensors[1:]) if self.weight_forms else (self, tensors)
        if not isinstance(self.function, nn.Module):
            return made
        others = {id(old): new for old, new in zip(self.function.parameters(), rest, strict=True)}
        return made.with_function(copied(self.function, lambda x: others[id(x)]))

    def with_weight(self, weight: Tensor) -> Self:
        """Make the same score with another weight.

        Args:
            weight: the weight, ``[..., D]``, in a form of ``weight_forms``.

        Returns:
            The score.
        """
        raise NotImplementedError

    def with_function(self, function: nn.Module) -> Self:
        """Make the same score with another function in the place of the user's.

        Args:
            function: acts on each element of a tensor.

        Returns:
            The score.
        """
        raise NotImplementedError

    def act(self, x: Tensor) -> Tensor:
        """The activation of the sum of query and key, if the score is additive.

        Args:
            x: the sums, ``[..., D]``.

        Returns:
            The same shape, ``[..., D]``.
        """
        raise NotImplementedError

    def finish(self, scores: Tensor) -> Tensor:
        """Change scores after scale and bias; a score of -inf stays.

        Args:
            scores: ``[...]``, floating.

        Returns:
            The finished scores, ``[...]``.
        """
        return scores


@final
class Dot(Compatibility):
    """The scaled dot product."""

    code = (-1.0, 0.0)


DOT = Dot()


@final
class ByUser(Compatibility):
    """A function of finished scores that a user gave; torch differentiates it."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def with_function(self, function: nn.Module) -> ByUser:
        return ByUser(function)

    def finish(self, scores: Tensor) -> Tensor:
        assert self.function is not None
        return applied(self.function, scores, "score")


def applied(function: Callable[[Tensor], Tensor], x: Tensor, name: str) -> Tensor:
    """``function(x)``."""
    y = function(x)
    if not isinstance(y, Tensor):
        raise TypeError(f"{name} must give a tensor, got {type(y).__name__}")
    if y.shape != x.shape or y.dtype != x.dtype:
        wanted, got = f"{x.dtype} {list(x.shape)}", f"{y.dtype} {list(y.shape)}"
        raise ValueError(f"{name} must keep shape and dtype, {wanted}, got {got}")
    if torch.is_grad_enabled() and x.requires_grad and not y.requires_grad:
        raise ValueError(f"{name} must be differentiable by torch, got a result without a gradient")
    return y


def compatibility(score: Any) -> Compatibility:
    """What computes the scores of a call whose argument ``score`` is this."""
    if score is None:
        return DOT
    return score if isinstance(score, Compatibility) else ByUser(score)


def copied(module: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    """A copy of a module that computes with ``change`` of each parameter, and shares all else."""
    made = copy.copy(module)
    own = {name: None if x is None else change(x) for name, x in module._parameters.items()}
    inner = {name: None if x is None else copied(x, change) for name, x in module._modules.items()}
    made.__dict__.update(_parameters=own, _modules=inner)  # past the check for nn.Parameter
    return made
