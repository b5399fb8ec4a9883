"""Listed pairs with a label each, and a rule for all other pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.labels.alike import check_room, check_slice, common_batch
from relgraph.labels.base import NOT_ATTENDING, UNLABELED, Labels, smallest_dtype
from relgraph.labels.borders import check_ptrs, cut_borders, graph_at, graph_of
from relgraph.labels.counts import SHIFT, bins, pairs_of
from relgraph.labels.dense import without_ids
from relgraph.labels.pairs import Pairs, first_of_each, numbers

DUPLICATES = ("error", "first", "sum")


@final
@dataclass(frozen=True, init=False, eq=False, repr=False)
class EdgeLabels(Labels):
    """The edges of a graph: each listed pair carries an id, every other pair follows ``default``.

    Direction: ``edge_index[:, e] = (source, target)`` as in PyG's ``MessagePassing``. The source is the key j, the
    target is the query i.

    Source: PyG, for ``edge_index``.

    Args:
        edge_index: ``[2, P]``, integer, (key, query) by column: keys in ``[0, N_k)``, queries in ``[0, N_q)``.
        ids: ``[P]``, integer, one label per edge; -1 attends without a label.
        num_labels: R, of the edges and the default together.
        q_len: N_q, number of queries.
        k_len: N_k, number of keys; ``q_len`` by default.
        default: what the other pairs do: with ``None`` they do not attend (edges-only attention); with an int they
            carry that id (-1: none); with other labels they carry theirs.
        duplicates: what to do with parallel edges if there is a default: ``"error"`` raises, ``"first"`` uses only the
            first, ``"sum"`` adds up their terms. In edges-only attention each edge attends separately.
        ptr: ``[G+1]``, integer, borders of a packed batch; no edge crosses a border.
        q_ptr: ``[G+1]``, integer, borders of the queries if they differ from those of the keys.
        batch: ``[P]``, integer, the batch row of each edge, for padded batches.
        batch_size: B, the number of batch rows, including rows without an edge; given with ``batch``.

    Raises:
        ValueError: ids, edge ends or batch rows out of range, shapes that do not fit, an edge across graphs, an unknown
            ``duplicates``, a default of other pairs or with more labels, ``batch`` together with ``ptr``, or parallel
            edges with a default and ``duplicates="error"``.

    Example:
        >>> rg.EdgeLabels(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1]), 3, q_len=3, default=2).to_dense()[0]
        tensor([[[2, 2, 2],
                 [0, 2, 2],
                 [2, 1, 2]]])
    """

    edge_index: Tensor
    ids: Tensor
    num_labels: int
    default: int | Labels | None
    duplicates: str
    batch: Tensor | None
    parallel: bool | None

    def __init__(
        self,
        edge_index: Tensor,
        ids: Tensor,
        num_labels: int,
        *,
        q_len: int,
        k_len: int | None = None,
        default: int | Labels | None = None,
        duplicates: str = "error",
        ptr: Tensor | None = None,
        q_ptr: Tensor | None = None,
        batch: Tensor | None = None,
        batch_size: int = 1,
    ) -> None:
        check.length("num_labels", num_labels, most=check.MOST_IDS)
        check.length("q_len", q_len)
        k_len = q_len if k_len is None else check.length("k_len", k_len)
        edge_index = check.integer_tensor("edge_index", edge_index, dim=2).to(torch.int64, copy=True)
        check.unmapped("edge_index", edge_index)
        ids = check.integer_tensor("ids", ids, dim=1)
        if edge_index.shape[0] != 2 or ids.shape[0] != edge_index.shape[1]:
            raise ValueError(
                "edge_index must have shape [2, P] and ids shape [P], "
                f"got {list(edge_index.shape)} and {list(ids.shape)}"
            )
        check.choice("duplicates", duplicates, DUPLICATES)
        q_ptr, k_ptr = check_ptrs(ptr, q_ptr, q_len, k_len)
        check.integer("batch_size", batch_size, minimum=0)
        check.numbered_pairs("batch_size, q_len and k_len", batch_size, q_len, k_len)
        if batch is not None:
            batch = check.integer_tensor("batch", batch, dim=1).to(torch.int64, copy=True)
            if batch.shape != ids.shape or k_ptr is not None:
                raise ValueError(f"batch must have shape [{ids.shape[0]}], without a ptr, got {list(batch.shape)}")
        elif batch_size != 1:
            raise ValueError(f"batch must be given when batch_size is not 1, got batch_size={batch_size}")
        check.same_device(edge_index=edge_index, ids=ids, batch=batch, ptr=k_ptr)
        self._check_default(default, num_labels, q_len, k_len, batch_size, q_ptr)
        check.id_range("ids", ids, num_labels)
        self._set(
            edge_index=edge_index, ids=ids.to(smallest_dtype(num_labels), copy=True), batch=batch, q_ptr=q_ptr,
            k_ptr=k_ptr, default=default, q_len=q_len, k_len=k_len,
            batch_size=common_batch(batch_size, default.batch_size if isinstance(default, Labels) else 1),
            num_labels=num_labels, duplicates=duplicates, parallel=None,
        )  # fmt: skip
        if check.can_look_at_data(edge_index, ids, batch):
            self._check_edges(batch_size)

    @property
    def device(self) -> torch.device:
        """The device of the edges."""
        return self.ids.device

    @classmethod
    def _trusted(cls, edge_index: Tensor, ids: Tensor, num_labels: int, q_len: int, k_len: int) -> Self:
        """Edges-only labels from tensors that the caller has checked."""
        return cls._make(
            edge_index=edge_index.to(torch.int64), ids=ids, num_labels=num_labels, q_len=q_len, k_len=k_len,
            default=None, duplicates="error", parallel=None, batch=None, batch_size=1, q_ptr=None, k_ptr=None,
        )  # fmt: skip

    @staticmethod
    def _check_default(
        default: Any, num_labels: int, q_len: int, k_len: int, batch_size: int, q_ptr: Tensor | None
    ) -> None:
        packed = q_ptr is not None
        if default is None:
            return
        if isinstance(default, int) and not isinstance(default, bool):
            check.integer("default", default, minimum=UNLABELED, maximum=num_labels - 1)
            return
        if not isinstance(default, Labels) or not isinstance(default.num_labels, int):
            raise TypeError(f"default must be None, an int or Labels other than a sum, got {type(default).__name__}")
        if default.num_labels > num_labels:
            raise ValueError(f"default must have at most num_labels = {num_labels} labels, got {default.num_labels}")
        if (default.q_len, default.k_len) != (q_len, k_len) or default.packed != packed:
            raise ValueError(
                f"default must cover [N_q, N_k] = [{q_len}, {k_len}], {'packed' if packed else 'not packed'}, "
                f"got {default!r}"
            )
        if batch_size != 1 and not check.among(default.batch_size, 1, batch_size):
            raise ValueError(f"default must have batch_size 1 or {batch_size}, got {default.batch_size}")
        if default.q_ptr is not None and q_ptr is not None and default.q_ptr.device != q_ptr.device:
            raise ValueError(f"default must be on the device of ptr, {q_ptr.device}, got {default.q_ptr.device}")
        if default._edges_only and getattr(default, "parallel", False) is not False:
            raise ValueError("default must not hold parallel edges that attend separately: give it a default too")

    def _check_edges(self, batch_size: int) -> None:
        """Check ranges, borders and parallel edges, which reads the data."""
        source, target = self.edge_index
        check.id_range("edge_index: every source (key)", source, self.k_len, minimum=0)
        check.id_range("edge_index: every target (query)", target, self.q_len, minimum=0)
        if self.batch is not None:
            _check_batch_rows(self.batch, batch_size)
        if self.q_ptr is not None and self.k_ptr is not None:
            across = graph_of(self.q_ptr, self.q_len)[target] != graph_of(self.k_ptr, self.k_len)[source]
            if bool(across.any()):
                e = int(across.nonzero()[0])
                raise ValueError(
                    f"edge_index must not cross from graph to graph, got edge {e}: {int(source[e])} -> {int(target[e])}"
                )
            if isinstance(self.default, Labels):
                theirs: Any = self.default.q_ptr, self.default.k_ptr
                if not all(map(torch.equal, theirs, (self.q_ptr, self.k_ptr))):
                    raise ValueError("default must have the same ptr as the edges, got other borders")
        key = self._pair_keys().sort().values
        twice = (key[1:] == key[:-1]).nonzero()
        object.__setattr__(self, "parallel", bool(twice.numel()))
        if twice.numel() and self.default is not None and self.duplicates == "error":
            pair = int(key[int(twice[0])]) % (self.q_len * self.k_len)
            raise ValueError(
                f"duplicates must be 'first' or 'sum' when parallel edges meet a default, got 'error' and more than "
                f"one edge from {pair % self.k_len} to {pair // self.k_len}"
            )

    def _check_again(self) -> None:
        super()._check_again()
        self._check_edges(self.batch_size)

    @property
    def offsets(self) -> tuple[int | Tensor | None, ...]:
        return self.default.offsets if isinstance(self.default, Labels) else ()

    @property
    def _edges_only(self) -> bool:
        return self.default is None

    @property
    def _several(self) -> bool:
        if self.parallel and (self.default is None or self.duplicates == "sum"):
            return True
        return isinstance(self.default, Labels) and self.default._several

    def _carries_no_ids(self) -> bool:
        if self.num_labels == 0:
            return True
        default = self._of_default(lambda labels: labels._carries_no_ids())
        return (default is None or default is True or default == UNLABELED) and without_ids(self.ids)

    def _of_default(self, change: Callable[[Labels], Any]) -> Any:
        """What ``change`` makes of labels of the other pairs; a default that is an id or None stays."""
        return change(self.default) if isinstance(self.default, Labels) else self.default

    def _pair_keys(self) -> Tensor:
        """One number per edge, ordered by batch row, query and key."""
        source, target = self.edge_index
        rows = target if self.batch is None else self.batch * self.q_len + target
        return rows * self.k_len + source

    def to_dense(self) -> tuple[Tensor, Tensor]:
        check_room(self)
        ids, attend = self._default_dense()
        chosen: Tensor | slice = slice(None)
        if self._has_parallel():
            if self.default is None or self.duplicates != "first":
                raise ValueError("parallel edges have no dense form (ids, attend): loop over the edges instead")
            chosen = first_of_each(self._pair_keys())
        source, target = self.edge_index[:, chosen]
        row = slice(None) if self.batch is None else self.batch[chosen]
        ids[row, target, source] = self.ids[chosen].to(torch.int64)
        attend[row, target, source] = True
        return ids, attend

    def _has_parallel(self) -> bool:
        if self.parallel is not None:
            return self.parallel
        keys = self._pair_keys()
        return keys.unique().numel() != keys.numel()

    def _default_dense(self) -> tuple[Tensor, Tensor]:
        device = self.edge_index.device
        shape = (self.batch_size, self.q_len, self.k_len)
        if isinstance(self.default, Labels):
            ids, attend = self.default.to_dense()
            return ids.to(device).expand(shape).clone(), attend.to(device).expand(shape).clone()
        ids = torch.full(shape, UNLABELED if self.default is None else self.default, device=device)
        attend = torch.full(shape, self.default is not None, device=device)
        if self.q_ptr is not None and self.k_ptr is not None:
            attend &= graph_of(self.q_ptr, self.q_len)[:, None] == graph_of(self.k_ptr, self.k_len)
        return ids.masked_fill(~attend, UNLABELED), attend

    def rows(self, start: int, stop: int) -> Self:
        check_slice(start, stop, self.q_len)
        default = self._of_default(lambda labels: labels.rows(start, stop))
        q_ptr = None if self.q_ptr is None else cut_borders(self.q_ptr, start, stop)
        return self._cut(1, start, stop, default, (stop - start, self.k_len), (q_ptr, self.k_ptr))

    def cols(self, start: int, stop: int) -> Self:
        check_slice(start, stop, self.k_len)
        default = self._of_default(lambda labels: labels.cols(start, stop))
        k_ptr = None if self.k_ptr is None else cut_borders(self.k_ptr, start, stop)
        return self._cut(0, start, stop, default, (self.q_len, stop - start), (self.q_ptr, k_ptr))

    def _cut(
        self, side: int, start: int, stop: int, default: int | Labels | None, lengths: tuple[int, int],
        ptrs: tuple[Tensor | None, Tensor | None],
    ) -> Self:  # fmt: skip
        """The edges whose key (``side`` 0) or query (1) is in ``start:stop``, counted from ``start``."""
        ends = self.edge_index[side]
        keep = (ends >= start) & (ends < stop)
        edge_index = self.edge_index[:, keep]
        edge_index[side] -= start
        return self._with_edges(
            edge_index, self.ids[keep], None if self.batch is None else self.batch[keep], q_len=lengths[0],
            k_len=lengths[1], default=default, q_ptr=ptrs[0], ptr=ptrs[1],
        )  # fmt: skip

    def _with_edges(self, edge_index: Tensor, ids: Tensor, batch: Tensor | None, **changed: Any) -> Self:
        """Other edges of these labels, with whatever else changes by name."""
        same = {
            "q_len": self.q_len, "k_len": self.k_len, "default": self.default, "duplicates": self.duplicates,
            "ptr": self.k_ptr, "q_ptr": self.q_ptr, "batch_size": 1 if batch is None else self.batch_size,
        }  # fmt: skip
        return type(self)(edge_index, ids, self.num_labels, batch=batch, **{**same, **changed})

    def _outline(self) -> Self:
        batch = None if self.batch is None else self.batch[:0]
        none = {"edge_index": self.edge_index[:, :0], "ids": self.ids[:0], "batch": batch}
        return self._make(**self.__getstate__() | none | {"default": self._of_default(lambda x: x._outline())})

    def _cut_batch(self, start: int, stop: int) -> Self:
        default = self._of_default(lambda labels: labels._batch_rows(start, stop))
        if self.batch is None:
            return self._with_edges(self.edge_index, self.ids, None, default=default)
        keep = (self.batch >= start) & (self.batch < stop)
        batch = self.batch[keep] - start
        return self._with_edges(
            self.edge_index[:, keep], self.ids[keep], batch, default=default, batch_size=stop - start
        )

    def _padded(self, length: int) -> Self:
        assert self.k_ptr is not None
        graphs = self.k_ptr.shape[0] - 1
        check.numbered_pairs("graphs and length", graphs, length, length)
        row = graph_at(self.k_ptr, self.edge_index[1])
        return self._with_edges(
            self.edge_index - self.k_ptr[row], self.ids, row, q_len=length, k_len=length, ptr=None, q_ptr=None,
            default=self._of_default(lambda labels: labels._padded(length)), batch_size=graphs,
        )  # fmt: skip

    def _merged(self) -> Self:
        """The first of all edges with the same ends."""
        first = first_of_each(self._pair_keys())
        batch = None if self.batch is None else self.batch[first]
        return self._with_edges(self.edge_index[:, first], self.ids[first], batch, duplicates="error")

    def _pairs(self, batch: int) -> tuple[Pairs, Tensor]:
        """The edges and their codes, repeated in each of ``batch`` rows unless they hold batch rows."""
        key, query = self.edge_index
        ids = self.ids.long()
        if self.batch is not None:
            return Pairs(self.batch, query, key), ids
        row = torch.arange(batch, device=key.device).repeat_interleave(key.shape[0])
        return Pairs(row, query.repeat(batch), key.repeat(batch)), ids.repeat(batch)

    def _codes_at(self, pairs: Pairs) -> Tensor:
        if isinstance(self.default, Labels):
            codes = self.default._codes_at(pairs)
        else:
            codes = torch.full_like(pairs.key, NOT_ATTENDING if self.default is None else self.default)
        if self.ids.shape[0] == 0:
            return codes
        edges, ids = self._pairs(1)
        listed, order = numbers(edges, self).sort(stable=True)  # so that the first of parallel edges is found
        wanted = numbers(pairs.within(1 if self.batch is None else self.batch_size), self)
        at = torch.searchsorted(listed, wanted).clamp(max=listed.shape[0] - 1)
        return torch.where(listed[at] == wanted, ids[order[at]], codes)

    def _labeled_pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        if self.default is not None:
            return super()._labeled_pairs()
        carry = self.ids >= 0
        key, query = self.edge_index[:, carry]
        return key, query, self.ids[carry]

    def _count(self, batch: int, hidden: Tensor) -> Tensor:
        pairs, ids = self._pairs(batch)
        listed = numbers(pairs, self)
        if self.default is not None and self.duplicates == "first":
            first = first_of_each(listed)
            listed, ids = listed[first], ids[first]
        total = bins(ids[~torch.isin(listed, hidden)], self)
        covered = torch.cat([hidden, listed]).unique()
        if isinstance(self.default, Labels):
            rest = self.default._count(batch, covered)
            total[: rest.shape[0]] += rest.to(total.device)
        else:
            code = NOT_ATTENDING if self.default is None else self.default
            total[code + SHIFT] += pairs_of(self, batch) - covered.shape[0]
        return total

    def _describe(self) -> list[str]:
        out = [*super()._describe(), f"edges={self.ids.shape[0]}", f"default={self.default!r}"]
        return out if self.duplicates == "error" else [*out, f"duplicates={self.duplicates!r}"]


def _check_batch_rows(batch: Tensor, batch_size: int) -> None:
    """Raise ValueError unless every edge is in one of ``batch_size`` batch rows."""
    check.unmapped("batch", batch)
    if batch.numel() == 0:
        return
    low, high = (int(row) for row in torch.aminmax(batch))
    if low < 0 or high >= batch_size:
        hint = ": give batch_size, the number of batch rows" if low >= 0 else ""
        raise ValueError(
            f"batch must lie in [0, batch_size) = [0, {batch_size}), got values from {low} to {high}{hint}"
        )
