"""What a benchmark compares: ways to compute the same, and the check of their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class NotRun(Exception):  # noqa: N818 - it is news for the reader of a table
    """A way cannot be measured here; its row shows the message."""


class Wrong(Exception):  # noqa: N818
    """A way's values differ from the formula, so it must not be compared."""


@dataclass(frozen=True, eq=False)
class Made:
    """A way, ready to be called.

    Attributes:
        call: the computation, without arguments.
        leaves: its trainable tensors, by name; backward computes all their gradients.
        trains: whether it has a backward here.
    """

    call: Callable[[], Tensor]
    leaves: dict[str, Tensor]
    trains: bool = True


@dataclass(frozen=True, eq=False)
class Way:
    """One competitor.

    Attributes:
        name: its name in tables and plots.
        make: builds it on inputs; raises :class:`NotRun` if it cannot.
        needs: about how many bytes training holds at a setting, beyond inputs.
        meaning: what it computes, to check its values.
        compiles: whether its first call compiles.
    """

    name: str
    make: Callable[[Any], Made]
    needs: Callable[[Any], int]
    meaning: Any
    compiles: bool = False


def with_gradients(output: Tensor, leaves: dict[str, Tensor], grad: Tensor) -> dict[str, Tensor]:
    """The output, and the gradients of all leaves by name."""
    grads = torch.autograd.grad(output, list(leaves.values()), grad)
    return {"output": output.detach(), **dict(zip(leaves, grads, strict=True))}


TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
TABLES = 5  # a table's gradient is a sum over all pairs, and some ways sum in a half type


def compare(got: dict[str, Tensor], wanted: dict[str, Tensor], dtype: torch.dtype, name: str) -> None:
    """Raise :class:`Wrong` where a way's relative error (of norms) is above the dtype's tolerance."""
    for what, exact in wanted.items():
        error = float((got[what].double() - exact.double()).norm() / exact.double().norm().clamp_min(1e-30))
        allowed = TOLERANCE[dtype] * (TABLES if what.endswith("table") else 1)
        if not error <= allowed:
            raise Wrong(f"{name}: {what} is {error:.2g} from the formula, at most {allowed:.0e} is allowed")
