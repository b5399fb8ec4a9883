"""What a benchmark compares: ways to compute something at a setting, with what each needs and whether it can."""

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
    """A way cannot be measured here; the message is what stands in its row."""


@dataclass(frozen=True, eq=False)
class Made:
    """A way, ready to be called.

    Attributes:
        call: the computation, without arguments.
        leaves: what it learns, by name; gradients are taken of all of them.
        trains: whether there is a backward here.
        note: what the reader must know beside the name.
    """

    call: Callable[[], Tensor]
    leaves: dict[str, Tensor]
    trains: bool = True
    note: str = ""


@dataclass(frozen=True, eq=False)
class Way(Generic[S]):
    """One competitor.

    Attributes:
        name: how it is called in tables and plots.
        make: builds it on the inputs of a setting; raises :class:`NotRun` where it cannot.
        needs: bytes that training holds at a setting, about, beyond inputs.
        meaning: what it computes, for the check of its values.
        compiles: whether its first call compiles.
    """

    name: str
    make: Callable[[Any], Made]
    needs: Callable[[S], int]
    meaning: Any = None
    compiles: bool = False


@dataclass(frozen=True)
class Side(Generic[S]):
    """Ways that are compared with each other, the floor first.

    Attributes:
        ways: for a setting.
        inputs: the numbers all ways work on.
        small: a setting at which all gradients are checked.
        check: raises :class:`Wrong` unless a way's values are right; gives how far they are from exact.
    """

    ways: Callable[[S], list[Way[S]]]
    inputs: Callable[[S], Any]
    small: Callable[[S], S]
    check: Callable[[Way[S], Made, Any], float]


class Wrong(Exception):  # noqa: N818
    """A way's values are not what the formula gives: a wrong competitor is no competitor."""


TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
TABLES = 5  # a table's gradient is a sum over all pairs, which some ways take in a half type


def distance_from(got: dict[str, Tensor], wanted: dict[str, Tensor], dtype: torch.dtype, name: str) -> float:
    """The largest relative error (of norms) of what a way gives; raises :class:`Wrong` above the dtype's tolerance."""
    worst = 0.0
    for what, exact in wanted.items():
        error = float((got[what].double() - exact.double()).norm() / exact.double().norm().clamp_min(1e-30))
        allowed = TOLERANCE[dtype] * (TABLES if what.endswith("table") else 1)
        if not error <= allowed:
            raise Wrong(f"{name}: {what} is {error:.2g} from the formula, at most {allowed:.0e} is allowed")
        worst = max(worst, error)
    return worst


def side_of(setting: object) -> Side[Any]:
    """The ways that a setting is for; raises :class:`NotRun` where a package is missing."""
    module = MODULES[type(setting).__name__]
    try:
        return importlib.import_module(f"docs.benchmarks.{module}").SIDE
    except ImportError as error:
        raise NotRun(f"not run: {error}") from None
