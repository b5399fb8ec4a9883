"""Labels by your own function of the positions of query and key."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import cut, shown
from relgraph.graphs import Graph, check_only_graph
from relgraph.labelers.all_pairs import bool_as_ids, label_pairs
from relgraph.labelers.base import Labeler
from relgraph.labels import BlockLabels, DenseLabels
from relgraph.labels.base import smallest_dtype
from relgraph.labels.distance import check_offset

BLOCK = 1 << 22
"""The number of pairs that ``fn`` gets at a time: 32 MiB per tensor of 64 bits."""


@final
@dataclass(frozen=True, init=False, repr=False)
class FromFunction(Labeler):
    """A labeler whose ids your own vectorised function of positions returns: ``fn(i, j)``.

    ``fn`` receives two int64 tensors that broadcast, query positions i ``[N_q, 1]`` and key positions j ``[1, N_k]``.
    It returns integer ids that broadcast to ``[N_q, N_k]``; -1 means no label. If R is 2, it may also return bools,
    which become the ids 0 and 1. With more than 2^22 pairs, ``fn`` receives some rows of queries at a time, so the id
    of a pair must not depend on other pairs. Query positions begin at ``q_offset``. The ids are written out. If ``fn``
    depends only on j - i, a :class:`~relgraph.labelers.DistanceLabeler` stores nothing of that size.

    Args:
        fn: the function; define it at the top of a module if you want to pickle the labeler.
        num_labels: R; ``fn`` returns ids in ``[-1, R)``.
        names: R different names; the numbers by default.

    Raises:
        TypeError: ``fn`` is not callable, ``num_labels`` not an int, or a name not a string.
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
    ) -> DenseLabels | BlockLabels:
        """The labels of ``q_len`` queries and ``k_len`` keys.

        Args:
            q_len: N_q, number of queries; or just a graph, whose nodes are the sequence. ``fn`` then receives flat
                tensors with the positions of all pairs within a graph.
            k_len: N_k, number of keys; ``q_len`` by default.
            q_offset: key position of query row 0: an int, a scalar tensor or ``[B]`` (i is ``[B, N_q, 1]`` then).

        Returns:
            Dense labels, or block labels for a packed batch of graphs; id r is called ``names[r]``.

        Raises:
            TypeError: a length or offset that is not an int, or ``fn`` did not return a tensor.
            ValueError: a negative length, more than 2^32 pairs (which are written out) or 2^24 queries or keys, another
                argument with a graph, or ``fn`` returned a wrong dtype, a shape that does not broadcast, bools if R is
                not 2, or ids out of range.
        """
        if isinstance(q_len, Graph):
            graph = check_only_graph(q_len, k_len=k_len, q_offset=q_offset)
            query, key = graph.pairs()
            start = graph.borders()[graph.graph_of()[query]]
            ids = self._ids(query - start, key - start, (0, 1))
            return label_pairs(graph, _expanded(ids, tuple(query.shape)), self.num_labels)
        check.length("q_len", q_len)
        k_len = q_len if k_len is None else check.length("k_len", k_len)
        check_offset(q_offset)
        rows = q_offset.shape[0] if isinstance(q_offset, Tensor) and q_offset.dim() == 1 else 1
        check.written("q_len and k_len", rows, q_len, k_len)
        device = q_offset.device if isinstance(q_offset, Tensor) else None
        i, j = torch.arange(q_len, device=device)[:, None], torch.arange(k_len, device=device)[None]
        if isinstance(q_offset, Tensor) and q_offset.dim() == 1:
            i = i + q_offset[:, None, None]
        elif q_offset is not None:
            i = i + q_offset
        step = q_len if torch.compiler.is_compiling() else max(BLOCK // max(rows * k_len, 1), 1)
        if step >= q_len:
            return DenseLabels._trusted(self._block(i, j), self.num_labels)
        ids = torch.empty(0)
        for start in range(0, q_len, step):
            block = self._block(i[..., start : start + step, :], j)
            if start == 0:
                ids = block.new_empty((*block.shape[:-2], q_len, k_len))
            ids[..., start : start + step, :] = block
        return DenseLabels._trusted(ids, self.num_labels)

    def _block(self, i: Tensor, j: Tensor) -> Tensor:
        """The ids of some rows, in the type that stores them."""
        ids = _expanded(self._ids(i, j, (0, 1, 2, 3)), (*i.shape[:-1], j.shape[-1]))
        return ids.to(smallest_dtype(self.num_labels))

    def _ids(self, i: Tensor, j: Tensor, dims: tuple[int, ...]) -> Tensor:
        name = "the ids that fn returns"
        ids = check.integer_tensor(name, bool_as_ids(name, self.fn(i, j), self.num_labels), dim=dims)
        check.id_range("fn's ids", ids, self.num_labels)
        return ids

    def __reduce__(self) -> tuple[Any, ...]:
        name = getattr(self.fn, "__qualname__", "")
        if "<lambda>" in name or "<locals>" in name:
            raise pickle.PicklingError(
                f"cannot pickle {self!r}: fn is a lambda or a local function; define it at the top of a module"
            )
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


def _expanded(ids: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``ids`` broadcast to one per pair; ``fn`` may return a batch of ids for a single batch of positions."""
    wanted = shape if ids.dim() <= len(shape) else (ids.shape[0], *shape)
    try:
        return ids.expand(wanted).contiguous()
    except RuntimeError:
        raise ValueError(
            f"the ids that fn returns must broadcast to {list(shape)}, got shape {list(ids.shape)}"
        ) from None
