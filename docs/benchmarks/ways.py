"""What a benchmark compares: ways to compute something at a setting, with their needs and limits."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

MODULES = {"Sequence": "sequences", "Edges": "edge_layers", "Packed": "packed_graphs"}

S = TypeVar("S")


class NotRun(Exception):  # noqa: N818 - it is news for the reader of a table
    """A way cannot be measured here; its row shows the message."""


@dataclass(frozen=True, eq=False)
class Made:
    """A way, ready to be called.

    Attributes:
        call: the computation, without arguments.
        leaves: its trainable tensors, by name; backward computes all their gradients.
        trains: whether it has a backward here.
        note: what readers must know, in addition to the name.
    """

    call: Callable[[], Tensor]
    leaves: dict[str, Tensor]
    trains: bool = True
    note: str = ""


@dataclass(frozen=True, eq=False)
class Way(Generic[S]):
    """One competitor.

    Attributes:
        name: its name in tables and plots.
        make: builds it on the inputs of a setting; raises :class:`NotRun` if it cannot.
        needs: about how many bytes training holds at a setting, beyond inputs.
        meaning: what it computes, to check its values.
        compiles: whether its first call compiles.
    """

    name: str
    make: Callable[[Any], Made]
    needs: Callable[[S], int]
    meaning: Any = None
    compiles: bool = False


@dataclass(frozen=True)
class Side(Generic[S]):
    """Ways that are compared with each other, with the floor first.

    Attributes:
        ways: the ways for a setting.
        inputs: the numbers that all ways use.
        small: a setting at which all gradients are checked.
        check: raises :class:`Wrong` unless a way's values are right; returns their distance from exact ones.
    """

    ways: Callable[[S], list[Way[S]]]
    inputs: Callable[[S], Any]
    small: Callable[[S], S]
    check: Callable[[Way[S], Made, Any], float]


class Wrong(Exception):  # noqa: N818
    """A way's values differ from the formula, so it must not be compared."""


def with_gradients(output: Tensor, leaves: dict[str, Tensor], grad: Tensor) -> dict[str, Tensor]:
    """The output, and the gradients of all leaves by name."""
    grads = torch.autograd.grad(output, list(leaves.values()), grad)
    return {"output": output.detach(), **dict(zip(leaves, grads, strict=True))}


TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
TABLES = 5  # a table's gradient is a sum over all pairs, and some ways sum in a half type


def distance_from(got: dict[str, Tensor], wanted: dict[str, Tensor], dtype: torch.dtype, name: str) -> float:
    """The largest relative error (of norms) of a way's values; raises :class:`Wrong` above the dtype's tolerance."""
    worst = 0.0
    for what, exact in wanted.items():
        error = float((got[what].double() - exact.double()).norm() / exact.double().norm().clamp_min(1e-30))
        allowed = TOLERANCE[dtype] * (TABLES if what.endswith("table") else 1)
        if not error <= allowed:
            raise Wrong(f"{name}: {what} is {error:.2g} from the formula, at most {allowed:.0e} is allowed")
        worst = max(worst, error)
    return worst


def side_of(setting: object) -> Side[Any]:
    """The ways for a setting; raises :class:`NotRun` if a package is missing."""
    module = MODULES[type(setting).__name__]
    try:
        return importlib.import_module(f"docs.benchmarks.{module}").SIDE
    except ImportError as error:
        raise NotRun(f"not run: {error}") from None
