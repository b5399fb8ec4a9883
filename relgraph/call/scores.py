"""Checks of a function of scores, whose results tell whether attention can use it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingModuleSource]

from relgraph.arguments import check
from relgraph.call.call import accumulation_dtype
from relgraph.call.operands import weight_of
from relgraph.score import Compatibility, applied


def check_function(name: str, function: Any, query: Tensor) -> None:
    """Raise unless a function keeps shape and dtype, gives the same result each time, and torch can differentiate it.

    Backward computes blocks again, so the function must give the same result each time. Blocks hold any rows and keys,
    so it must act on each number by itself. Blocks compute with copies of the parameters, and find them only in a
    module, so a plain function may not hold tensors that learn.
    """
    device, like = query.device.type, accumulation_dtype(query.dtype)
    few = torch.linspace(-2.0, 2.0, 256, dtype=like, device=query.device).view(1, 1, 16, 16)
    few = few + few.square() / 8  # uneven steps, so that the mean of some numbers differs from the mean of all
    as_computed = torch.autocast(device, enabled=False) if check.has_autocast(device) else nullcontext()
    with as_computed:
        if torch.compiler.is_compiling() or torch.is_inference_mode_enabled() or peek_interpreter_stack() is not None:
            applied(function, few, name)  # nothing can be differentiated here
            return
        with torch.enable_grad():
            given = few.clone()
            first = applied(function, given, name)
            if few.device.type != "meta" and not torch.equal(given, few):
                raise ValueError(f"{name} must leave its input as it is, got a function that changes it in place")
            if not isinstance(function, nn.Module) and first.requires_grad:
                raise ValueError(
                    f"{name} must be an nn.Module if it needs a gradient: its parameters are known, "
                    "got a function that holds a tensor with a gradient"
                )
            again = applied(function, given.requires_grad_(), name)
            turned = applied(function, _turned(few), name)  # fewer numbers, in another order
        if few.device.type == "meta":
            return
        if not torch.equal(first.detach().nan_to_num(), again.detach().nan_to_num()):
            raise ValueError(f"{name} must repeat itself, as it is computed again in backward, got a random function")
        if not _close(turned, _turned(first)):
            raise ValueError(
                f"{name} must act on each number by itself, got a function that mixes them or knows their place"
            )


def _turned(numbers: Tensor) -> Tensor:
    """The inner rows and columns of a square of numbers, the last ones first."""
    return numbers.detach().flip(-1, -2)[..., 1:-2, 1:-2].contiguous()


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether numbers are the same up to rounding, which may depend on their position."""
    near = 1e3 * torch.finfo(one.dtype).eps
    return torch.allclose(one.detach(), other.detach(), near, near, equal_nan=True)


def check_score_type(score: Any) -> None:
    """Raise TypeError unless ``score`` is None, one of ``relgraph.score`` or a function."""
    if not isinstance(score, Compatibility | None) and (isinstance(score, type) or not callable(score)):
        got = f"the class {score.__name__}" if isinstance(score, type) else type(score).__name__
        raise TypeError(f"score must be one of relgraph.score, a function of scores or None, got {got}")


def check_score_weight(score: Compatibility, **sizes: int) -> None:
    """Raise unless the weight of ``score`` is for heads H of size D and, if bilinear, R labels."""
    weight, forms = check.floating("score.weight", score.weight), weight_of(score).forms
    shapes = [[sizes[axis] for axis in form] for form in forms]
    if not check.shaped(weight, *shapes):
        shown = " or ".join(f"[{', '.join(form)}]" for form in forms)
        raise ValueError(f"score.weight must have shape {shown} = {shapes[0]} or {shapes[1]}, got {list(weight.shape)}")
