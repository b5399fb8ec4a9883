"""How the codes that two labels give a pair combine into one code.

A pair's *code* is its label id, or -1 if it attends without a label, or -2 if it does not attend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from relgraph.labels.base import NOT_ATTENDING, UNLABELED

Where = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class JoinRule(ABC):
    """How labels a and b, with ``r_a`` and ``r_b`` ids, combine pair by pair."""

    name: ClassVar[str]
    symbol: ClassVar[str]

    r_a: int
    r_b: int

    @property
    @abstractmethod
    def num_labels(self) -> int:
        """The number of labels of the result."""

    @abstractmethod
    def _code(self, a: Any, b: Any, where: Where) -> Any:
        """The combined code, by operations that ints and tensors share."""

    @final
    def codes(self, a: Tensor, b: Tensor) -> Tensor:
        """The combined codes of int64 tensors that broadcast."""
        return self._code(a, b, torch.where)

    @final
    def code(self, a: int, b: int) -> int:
        """The combined code of a single pair."""
        return self._code(a, b, lambda condition, yes, no: yes if condition else no)


@final
class ProductRule(JoinRule):
    """Mixed radix, a counting slowest; labeled if both are, attending if both do."""

    name = "product"
    symbol = "*"

    @property
    def num_labels(self) -> int:
        return self.r_a * self.r_b

    def _code(self, a: Any, b: Any, where: Where) -> Any:
        labeled = where((a < 0) | (b < 0), UNLABELED, a * self.r_b + b)
        return where((a == NOT_ATTENDING) | (b == NOT_ATTENDING), NOT_ATTENDING, labeled)


@final
class PriorityRule(JoinRule):
    """The code of a, or that of b if a attends without a label; ids of b come after those of a."""

    name = "first_of"
    symbol = "|"

    @property
    def num_labels(self) -> int:
        return self.r_a + self.r_b

    def _code(self, a: Any, b: Any, where: Where) -> Any:
        return where(a == UNLABELED, where(b < 0, b, b + self.r_a), a)


@final
class RestrictionRule(JoinRule):
    """The code of a if b attends."""

    name = "restrict"
    symbol = "&"

    @property
    def num_labels(self) -> int:
        return self.r_a

    def _code(self, a: Any, b: Any, where: Where) -> Any:
        return where(b == NOT_ATTENDING, NOT_ATTENDING, a)
