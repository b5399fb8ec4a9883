"""Labels by your own function of the positions of query and key."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import cut, shown
from relgraph.graphs import Graph, check_only_graph
from relgraph.labelers.all_pairs import bool_as_ids
from relgraph.labelers.base import Labeler
from relgraph.labels import BlockLabels, DenseLabels, FunctionLabels
from relgraph.labels.distance import check_offset
from relgraph.labels.function import by_function, packed_by_function


@final
@dataclass(frozen=True, init=False, repr=False)
class FromFunction(Labeler):
    """A labeler whose ids your own vectorised function of positions returns: ``fn(i, j)``.

    ``fn`` receives two int64 tensors that broadcast: query positions i ``[N_q, 1]`` and key positions j ``[1, N_k]``,
    or positions of some pairs ``[P, 1]``. It returns integer ids that broadcast to the same shape; -1 means no label.
    If R is 2, it may also return bools, which become the ids 0 and 1. Query positions begin at ``q_offset``.

    With at most 2^20 pairs in all, and in compiled code, the ids are written out. With more, the labels are
    :class:`~relgraph.labels.FunctionLabels`: attention calls ``fn`` again whenever it needs the ids of a block, forward
    and backward, so nothing of size N_q · N_k is held. ``fn`` then receives at most 2^18 pairs at a time (at least one
    row), so the id of a pair must not depend on other pairs. ``impl="triton"`` and compiled code need ``.dense()``.

    Args:
        fn: the function; define it at the top of a module if you want to pickle the labeler.
        num_labels: R; ``fn`` returns ids in ``[-1, R)``.
        names: R different names; the numbers by default.

    Raises:
        ValueError: ``num_labels`` is negative or more than 2^20, or names are repeated or not R.

    Example:
        >>> parity = rg.FromFunction(lambda i, j: (i + j) % 2, num_labels=2, names=["same", "other"])
        >>> parity.names
        ('same', 'other')
        >>> parity(2, 3).to_dense()[0]
        tensor([[[0, 1, 0],
                 [1, 0, 1]]])
    """

    _reads_lengths = True

    fn: Callable[[Tensor, Tensor], Tensor]
    _num_labels: int
    _names: tuple[str, ...]

    def __init__(
        self, fn: Callable[[Tensor, Tensor], Tensor], num_labels: int, names: Iterable[str] | None = None
    ) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be callable, got {type(fn).__name__}")
        check.length("num_labels", num_labels, most=check.MOST_LABELS)
        named = _numbers(num_labels)
        if names is not None:
            named = () if isinstance(names, str) else check.items("names", names, "strings, one per label")
            if isinstance(names, str) or not all(isinstance(name, str) for name in named):
                raise TypeError(f"names must be strings, one per label, got {shown(names)}")
        if len(named) != num_labels or len(set(named)) != num_labels:
            raise ValueError(f"names must hold num_labels = {num_labels} different names, got {cut(str(list(named)))}")
        self._set(fn=fn, _num_labels=num_labels, _names=named)

    @property
    def num_labels(self) -> int:
        return self._num_labels

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    def __call__(
        self, q_len: int | Graph, k_len: int | None = None, *, q_offset: int | Tensor | None = None
    ) -> DenseLabels | BlockLabels | FunctionLabels:
        """The labels of ``q_len`` queries and ``k_len`` keys.

        Args:
            q_len: N_q, number of queries; or just a graph, whose nodes are the sequence. For a packed batch ``fn`` may
                receive flat tensors ``[P]`` with the positions of pairs within a graph.
            k_len: N_k, number of keys; ``q_len`` by default.
            q_offset: key position of query row 0: an int, a scalar tensor or ``[B]`` (i is ``[B, N_q, 1]`` then).

        Returns:
            With at most 2^20 pairs, dense labels, or block labels for a packed batch of graphs; with more, labels by
            function. Id r is called ``names[r]``.

        Raises:
            ValueError: a negative length, more than 2^24 queries or keys, another argument with a graph, or ``fn``
                returned a wrong dtype, a shape that does not broadcast, bools if R is not 2, or ids out of range. Of
                more than 2^20 pairs, the first rows are checked here and the others when they are attended.
        """
        fn = OwnFunction(self.fn, self.num_labels)
        if isinstance(q_len, Graph):
            graph = check_only_graph(q_len, k_len=k_len, q_offset=q_offset)
            if graph.ptr is not None:
                here = torch.arange(graph.num_nodes, device=graph.ptr.device) - graph.ptr[graph.graph_of()]
                return packed_by_function(fn, (here,), (here,), self.num_labels, graph.ptr, graph.ptr)
            here = torch.arange(graph.num_nodes, device=graph.edge_index.device)
            return by_function(fn, (here,), (here,), self.num_labels)
        check.length("q_len", q_len)
        k_len = q_len if k_len is None else check.length("k_len", k_len)
        check_offset(q_offset)
        rows = q_offset.shape[0] if isinstance(q_offset, Tensor) and q_offset.dim() == 1 else 1
        for length in (rows, q_len, k_len):
            check.written("q_len and k_len", length)
        device = q_offset.device if isinstance(q_offset, Tensor) else None
        i, j = torch.arange(q_len, device=device), torch.arange(k_len, device=device)
        if isinstance(q_offset, Tensor) and q_offset.dim() == 1:
            i = i + q_offset[:, None]  # [B, N_q]
        elif q_offset is not None:
            i = i + q_offset
        return by_function(fn, (i,), (j,), self.num_labels)

    def __reduce__(self) -> tuple[Any, ...]:
        _check_address(self, self.fn)
        return FromFunction, (self.fn, self.num_labels, self.names)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __repr__(self) -> str:
        fn = getattr(self.fn, "__qualname__", None) or repr(self.fn)
        names = "" if self.names == _numbers(self.num_labels) else f", names={self.names!r}"
        return f"FromFunction({fn}, {self.num_labels}{names})"


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))


@dataclass(frozen=True)
class OwnFunction:
    """A user's function as labels call it, with its results checked.

    ``fn`` may give batch rows ids of their own if it is asked about the positions of all.
    """

    fn: Callable[[Tensor, Tensor], Tensor]
    num_labels: int

    def __call__(self, queries: Sequence[Tensor], keys: Sequence[Tensor]) -> Tensor:
        """The ids of pairs of positions."""
        (i,), (j,) = queries, keys
        shape = torch.broadcast_shapes(i.shape, j.shape)
        name = "the ids that fn returns"
        most = len(shape) if len(shape) == 1 else 3
        ids = bool_as_ids(name, self.fn(i, j), self.num_labels)
        ids = check.integer_tensor(name, ids, dim=tuple(range(most + 1)))
        check.id_range("fn's ids", ids, self.num_labels)
        try:
            return ids.expand(shape if ids.dim() <= len(shape) else (ids.shape[0], *shape))
        except RuntimeError:
            raise ValueError(
                f"the ids that fn returns must broadcast to {list(shape)}, got shape {list(ids.shape)}"
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        _check_address("labels by function", self.fn)
        return OwnFunction, (self.fn, self.num_labels)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def _check_address(what: object, fn: Callable[..., Any]) -> None:
    """Raise PicklingError if another process could not import ``fn``."""
    name = getattr(fn, "__qualname__", "")
    if "<lambda>" in name or "<locals>" in name:
        raise pickle.PicklingError(
            f"cannot pickle {what}: fn is a lambda or a local function; define it at the top of a module"
        )
