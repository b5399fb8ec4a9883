"""What all kinds of labels share: three states per pair, tensors that move together, and a dense form to check by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.labels.borders import check_ptrs
from relgraph.labels.contents import Contents
from relgraph.labels.naming import named_by, names_of

if TYPE_CHECKING:
    from relgraph.labels.dense import DenseLabels
    from relgraph.labels.describe import LabelCounts, SumCounts
    from relgraph.labels.pairs import Pairs
    from relgraph.labels.sum import SumLabels

UNLABELED = -1
"""The id of a pair that attends but carries no label."""

NOT_ATTENDING = -2
"""The stored sentinel of a pair that does not attend at all."""


def smallest_dtype(num_labels: int) -> torch.dtype:
    """The narrowest integer type that holds ids 0..num_labels-1 and both sentinels."""
    for dtype in (torch.int8, torch.int16, torch.int32):
        if num_labels - 1 <= torch.iinfo(dtype).max:
            return dtype
    return torch.int64


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Labels(ABC):
    """Which label each (query, key) pair carries: immutable data, no learning.

    A pair is in one of three states: it does not attend; it attends without a label (id -1); it attends with a
    label id in ``[0, num_labels)``. Labels have no head axis. A *packed* batch concatenates its graphs along one axis:
    graph g owns queries ``q_ptr[g]:q_ptr[g+1]`` and keys ``k_ptr[g]:k_ptr[g+1]``, and no pair crosses graphs.

    This class is abstract; its kinds are :class:`~relgraph.DistanceLabels`, :class:`~relgraph.EdgeLabels`,
    :class:`~relgraph.BlockLabels`, :class:`~relgraph.DenseLabels`, :class:`~relgraph.labels.FunctionLabels` and
    :class:`~relgraph.SumLabels`. They compare by value, and ``labels[start:stop]`` is ``labels.rows(start, stop)``;
    ``labels.cols(start, stop)`` slices the keys. They compose as labelers do: ``a * b`` is
    :func:`~relgraph.labels.product`, ``a + b`` is :func:`~relgraph.labels.total`, ``a | b`` is
    :func:`~relgraph.labels.first_of`, and ``a & b`` is :func:`~relgraph.labels.restrict`.

    Source: Shaw et al. 2018, section 3.1.

    Attributes:
        q_len: number of queries N_q (of all graphs together when packed).
        k_len: number of keys N_k (of all graphs together when packed).
        batch_size: B when labels differ between batch rows, else 1.
        num_labels: R; for a sum, one number per part.
        q_ptr: ``[G+1]`` query borders of a packed batch, else None.
        k_ptr: ``[G+1]`` key borders of a packed batch, else None.

    Example:
        >>> labels = rg.ClippedDistance(1)(4)
        >>> labels.q_len, labels.k_len, labels.num_labels, labels.packed
        (4, 4, 3, False)
        >>> labels[1:3].to_dense()[0]
        tensor([[[0, 1, 2, 2],
                 [0, 0, 1, 2]]])
    """

    q_len: int
    k_len: int
    batch_size: int
    num_labels: int | tuple[int, ...]
    q_ptr: Tensor | None
    k_ptr: Tensor | None

    _plan: ClassVar[Any] = None
    """The plan of these labels, after their lowering."""

    _watched: ClassVar[tuple[Tensor, ...] | None] = None
    """The tensors that a plan is made of, after they were collected; none of labels whose tensors nobody else has."""

    _named: ClassVar[Any] = None
    """The labeler that made them, or its names. No field, so that pytrees and compiled code do not depend on it."""

    @property
    def names(self) -> tuple[Any, ...] | None:
        """The names of the ids, which the labeler gave; for a sum one entry per part. None for labels without names."""
        return names_of(self._named)

    @classmethod
    def _make(cls, **fields: Any) -> Self:
        """Make labels with these fields, unchecked."""
        labels = object.__new__(cls)
        labels._set(**fields)
        return labels

    def _set(self, **fields: Any) -> None:
        """Set every field once; only constructors call this."""
        vars(self).update(fields)  # setting them one by one takes several times as long

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name not in ("_plan", "_watched")}
        if self._named is not None:
            state["_named"] = self.names  # a labeler may hold what cannot be pickled
        return state

    @property
    def packed(self) -> bool:
        """Whether this is a packed batch, with borders in ``q_ptr`` and ``k_ptr``."""
        return self.k_ptr is not None

    @property
    def device(self) -> torch.device | None:
        """The device of the tensors; None for labels without tensors, which work on any device."""
        return next((tensor.device for tensor in pytree.tree_leaves(self)), None)

    @abstractmethod
    def to_dense(self) -> tuple[Tensor, Tensor]:
        """Write out the id of every pair, and whether it attends.

        Returns:
            ``(ids, attend)``: int64 and bool, each ``[B or 1, N_q, N_k]``, query by row and key by column. ``ids`` is
            -1 for a pair without a label and for a pair that does not attend.

        Raises:
            TypeError: a sum, whose pairs carry several ids: call ``to_dense`` on each of its ``parts``.
            ValueError: parallel edges that each count; more than 2^32 pairs.

        Example:
            >>> ids, attend = rg.Window(1)(3).to_dense()
            >>> attend.int()
            tensor([[[1, 1, 0],
                     [1, 1, 1],
                     [0, 1, 1]]], dtype=torch.int32)
        """

    @abstractmethod
    def rows(self, start: int, stop: int) -> Self:
        """The labels of queries ``start:stop`` against all keys, ``[stop - start, N_k]`` pairs.

        Args:
            start: the first query row, from 0.
            stop: one past the last, at most N_q.

        Returns:
            Labels of the same kind and with the same distances.

        Example:
            >>> rg.ClippedDistance(1)(4).rows(2, 4).to_dense()[0]
            tensor([[[0, 0, 1, 2],
                     [0, 0, 0, 1]]])
        """

    @abstractmethod
    def cols(self, start: int, stop: int) -> Self:
        """The labels of all queries against keys ``start:stop``, ``[N_q, stop - start]`` pairs.

        The labels of decoding step t are ``labels.rows(t, t + 1).cols(0, t + 1)``, in either order.
        :func:`~relgraph.functional.merge` joins attention over slices that together cover all keys. In a packed batch
        each graph keeps its keys within ``start:stop``, which may be none.

        Args:
            start: the first key, from 0.
            stop: one past the last, at most N_k.

        Returns:
            Labels of the same kind and with the same distances, as ``q_offset`` becomes ``q_offset - start``.

        Example:
            >>> rg.ClippedDistance(1)(4).cols(2, 4).to_dense()[0]
            tensor([[[2, 2],
                     [2, 2],
                     [1, 2],
                     [0, 1]]])
        """

    @final
    def __getitem__(self, index: slice) -> Self:
        if not isinstance(index, slice) or index.step not in (None, 1):
            raise TypeError(
                f"{type(self).__name__} are indexed by a slice of query rows with step 1, got {shown(index)}"
            )
        start, stop, _ = index.indices(self.q_len)
        return self.rows(start, max(start, stop))

    def dense(self) -> DenseLabels:
        """The same labels as :class:`~relgraph.DenseLabels`, which hold N_q · N_k ids.

        Returns:
            Dense labels; in a packed batch, pairs across graphs do not attend.

        Raises:
            TypeError: a sum, which has several ids per pair.
            ValueError: parallel edges that each count, or more than 2^32 pairs.

        Example:
            >>> rg.ClippedDistance(1)(3).dense().ids
            tensor([[[1, 2, 2],
                     [0, 1, 2],
                     [0, 0, 1]]], dtype=torch.int8)
        """
        from relgraph.labels.dense import DenseLabels  # which imports this module

        if not isinstance(self.num_labels, int):
            raise TypeError("a sum of labels has several ids per pair and cannot become DenseLabels; take .parts first")
        ids, attend = self.to_dense()
        return DenseLabels(ids, self.num_labels, attend=attend)

    def describe(self, names: Any = None) -> LabelCounts | SumCounts:
        """Count the pairs of each label, without writing pairs out; the result prints as a table.

        Args:
            names: R different strings; for a sum, one sequence per part. Left out, the names that the labels carry; the
                table shows ids if they carry none.

        Returns:
            :class:`~relgraph.labels.LabelCounts`; for a sum, :class:`~relgraph.labels.SumCounts`.

        Raises:
            NotImplementedError: labels of more than 2^24 ids.

        Example:
            >>> labels = rg.EdgeLabels(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1]), 2, q_len=3)
            >>> labels.describe(["single", "double"])
            id  name             pairs   share
             0  single               1  11.1 %
             1  double               1  11.1 %
                does not attend      7  77.8 %
            2 labels, 9 pairs
        """
        from relgraph.labels.describe import describe  # which imports this module

        return describe(self, names)

    def __mul__(self, other: Labels) -> Labels:
        from relgraph.labels.algebra import product  # which imports this module, as below

        return product(self, other)

    def __add__(self, other: Labels) -> SumLabels:
        from relgraph.labels.algebra import total

        return total(self, other)

    def __or__(self, other: Labels) -> Labels:
        from relgraph.labels.algebra import first_of

        return first_of(self, other)

    def __and__(self, other: Labels) -> Labels:
        from relgraph.labels.algebra import restrict

        return restrict(self, other)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """These labels with their tensors on ``device``.

        Args:
            device: the new device, as in ``torch.Tensor.to``.
            non_blocking: whether copies from pinned memory may overlap with other work.

        Returns:
            Labels of the same kind with the same dtypes.

        Example:
            >>> rg.ClippedDistance(1)(3).dense().to("cpu").device
            device(type='cpu')
        """
        where = check.device("device", device)
        check.boolean("non_blocking", non_blocking)
        return self._map(lambda t: t.to(where, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Copy these labels to page-locked memory, so that ``to(device, non_blocking=True)`` overlaps with other work.

        Returns:
            Labels of the same kind, with every tensor pinned.
        """
        if self.device is not None and self.device.type != "cpu":
            raise ValueError(f"labels must be on the CPU to be pinned, got them on {self.device}")
        if self.device is not None and not torch.accelerator.is_available():
            raise NotImplementedError("pin_memory needs an accelerator, and torch finds none here")
        return self._map(lambda t: t.pin_memory())

    @property
    def offsets(self) -> tuple[int | Tensor | None, ...]:
        """The ``q_offset`` of all distance labels within these; None for each that was built without one."""
        return ()

    def _held(self) -> Iterator[Any]:
        """The tensors of which a plan is made, and the labels inside, each before its own."""
        for value in list(vars(self).values()):
            several = type(value) is tuple and value and isinstance(value[0], (Tensor, Labels))
            for x in value if several else (value,):
                if isinstance(x, (Labels, Tensor)):
                    yield x
                    yield from x._held() if isinstance(x, Labels) else ()

    def _contents(self) -> Contents:
        """What these tensors hold now."""
        if self._watched is None:
            vars(self)["_watched"] = tuple({id(x): x for x in self._held() if isinstance(x, Tensor)}.values())
        return Contents(self._watched)  # pyright: ignore[reportArgumentType]

    def _private(self) -> Self:
        """These labels, whose tensors nobody else has, so that they need not be watched."""
        vars(self)["_watched"] = ()
        return self

    def _check_again(self) -> None:
        """Check tensors that changed as the constructor did, and note again what it noted of them."""
        check_ptrs(self.k_ptr, self.q_ptr, self.q_len, self.k_len)
        known: dict[str, Any] = vars(self)
        if "ids" in known:
            least = NOT_ATTENDING if "full" in known else UNLABELED
            check.id_range("ids", known["ids"], known["num_labels"], minimum=least)
        if "ids" in known and "full" in known:
            known["full"] = not bool((known["ids"] == NOT_ATTENDING).any())

    # What the library asks of every kind; a sum asks its parts.
    @property
    def _summands(self) -> tuple[Labels, ...]:
        """The parts of a sum; other labels are their only part."""
        return (self,)

    @property
    def _edges_only(self) -> bool:
        """Whether only listed pairs attend, and each parallel one separately."""
        return False

    @property
    def _several(self) -> bool:
        """Whether parallel edges give a pair more than one label, or attend more than once."""
        return False

    def _carries_no_ids(self) -> bool:
        """Whether no pair is known to carry an id; ids that cannot be read here count as carried."""
        return self.num_labels == 0

    def _keeps_order(self) -> bool:
        """Whether no pair is known, without a look at ids, to attend to a key after the query."""
        return False

    def _outline(self) -> Labels:
        """These labels without listed pairs, for checks that need only lengths and numbers."""
        return self

    def _batch_rows(self, start: int, stop: int) -> Labels:
        """The labels of batch rows ``start:stop``; these labels if all rows share them."""
        return self if self.packed or self.batch_size == 1 else self._cut_batch(start, stop)

    def _cut_batch(self, start: int, stop: int) -> Labels:
        """The labels of batch rows ``start:stop``, which differ from row to row."""
        raise NotImplementedError

    def _padded(self, length: int) -> Labels:
        """Packed labels as a batch of one row per graph, of ``length`` queries and keys."""
        raise NotImplementedError

    def _codes_at(self, pairs: Pairs) -> Tensor:
        """The code of each pair, ``[P]``: id, -1 for none, -2 if it does not attend; the first of parallel edges."""
        raise NotImplementedError

    def _labeled_pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Key, query and id of every pair that carries one, ``[P]`` each, of the first batch row."""
        ids, _ = self.to_dense()
        query, key = ids[0].ge(0).nonzero().unbind(1)
        return key, query, ids[0, query, key]

    def _count(self, batch: int, hidden: Tensor) -> Tensor:
        """How many pairs have each code, ``[2 + R]``, over ``batch`` rows, without those numbered in ``hidden``."""
        raise NotImplementedError

    def _map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        tensors, spec = pytree.tree_flatten(self)
        once = {id(tensor): fn(tensor) for tensor in {id(t): t for t in tensors}.values()}
        made = pytree.tree_unflatten([once[id(tensor)] for tensor in tensors], spec)  # shared borders stay shared
        return named_by(self._named, made)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        (mine, my_spec), (theirs, their_spec) = pytree.tree_flatten(self), pytree.tree_flatten(other)
        same = (a.device == b.device and torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
        return my_spec == their_spec and all(same)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def _describe(self) -> list[str]:
        """The arguments that ``repr`` shows."""
        out = [f"q_len={self.q_len}", f"k_len={self.k_len}", f"num_labels={self.num_labels}"]
        if self.batch_size != 1:
            out.append(f"batch_size={self.batch_size}")
        if self.k_ptr is not None:
            out.append(f"graphs={self.k_ptr.shape[0] - 1}")
        return out

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._describe())})"
