"""Several labels per pair from one table, each with a weight that may learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn, Self, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.sharding import check_local
from relgraph.labels.alike import check_slice, common_batch
from relgraph.labels.base import NOT_ATTENDING, UNLABELED, Labels, smallest_dtype
from relgraph.labels.counts import SHIFT
from relgraph.labels.dense import DenseLabels, without_ids
from relgraph.labels.distance import DistanceLabels
from relgraph.labels.edge import EdgeLabels
from relgraph.labels.pairs import Pairs


@final
@dataclass(frozen=True, init=False, eq=False, repr=False)
class WeightedLabels(Labels):
    """A few labels per pair, each with a weight: a table's term is the weighted sum of its rows at these labels.

    Pair (i, j) carries labels l_ij1 … l_ijM with weights w_ij1 … w_ijM, so that ::

        e_ij = (q_i·(k_j + Σ_m w_ijm a^K[l_ijm]) + k_j·Σ_m w_ijm a^Q[l_ijm]) · scale + Σ_m w_ijm b[l_ijm]
        z_i  = Σ_j α_ij (v_j + Σ_m w_ijm a^V[l_ijm])

    The mass of label r is Σ_j α_ij Σ_m w_ijm over all m with l_ijm = r. A label that a pair carries twice counts twice.
    Weights get gradients. They may have any sign and need not sum to 1. Two labels with the weights 1 - t and t
    interpolate between two rows of a table, for time or for positions that are not whole numbers; radial bases of a
    distance are M weights of the labels 0 … M-1. Weights and ids have no axis for heads; heads that differ in them
    become batch rows, with tables of each batch row.

    Ids are copied. Weights are not: labels use the tensor that they are given, so that gradients reach it.

    Source: Schütt et al. 2017 (SchNet), eq. 11, for radial bases; Golovneva et al. 2024 (CoPE), eq. 5, for positions
    between two rows.

    Args:
        ids: ``[N_q, N_k, M]`` or ``[B, N_q, N_k, M]``, integer, with M at least 1; -1 adds nothing.
        weights: ``[N_q, N_k, M]`` or ``[B, N_q, N_k, M]``, floating; one of ids and weights may lack the batch axis.
        num_labels: R; ids are in ``[-1, R)``.
        attend: ``[N_q, N_k]`` or ``[B, N_q, N_k]``, bool: which pairs attend, by default all.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: shapes, dtypes or devices that do not fit each other, no labels per pair, an id out of range, or a
            negative ``num_labels``.

    Example:
        >>> time = torch.tensor([0.0, 0.5, 2.0])
        >>> apart = (time[:, None] - time).abs()
        >>> ids = torch.stack([apart.floor(), apart.floor() + 1], -1).long()
        >>> labels = rg.WeightedLabels(ids, torch.stack([1 - apart.frac(), apart.frac()], -1), 4)
        >>> labels.ids[0, 0, 1], labels.weights[0, 0, 1]
        (tensor([0, 1], dtype=torch.int8), tensor([0.5000, 0.5000]))
        >>> x, table = torch.randn(1, 2, 3, 8), torch.randn(4, 8)
        >>> rg.relation_attention(x, x, x, labels, table).shape
        torch.Size([1, 2, 3, 8])
    """

    ids: Tensor
    weights: Tensor
    num_labels: int
    pairs: Labels
    """Which pairs attend; it carries no ids. Its layout is that of ids and weights: listed edges, or all pairs."""

    def __init__(self, ids: Tensor, weights: Tensor, num_labels: int, *, attend: Tensor | None = None) -> None:
        ids, weights = _checked(ids, weights, num_labels, (3, 4))
        ids, weights = (x if x.dim() == 4 else x[None] for x in (ids, weights))
        q_len, k_len = ids.shape[1:3]
        pairs: Labels = DistanceLabels(q_len, k_len, lookup=(UNLABELED,), left=0, num_labels=0)
        if attend is not None:
            check.tensor("attend", attend)
            none = torch.full(attend.shape, UNLABELED, dtype=torch.int8, device=attend.device)
            pairs = DenseLabels(none, 0, attend=attend)
            if (pairs.q_len, pairs.k_len) != (q_len, k_len):
                raise ValueError(
                    f"attend must have shape [N_q, N_k] = [{q_len}, {k_len}] or [B, {q_len}, {k_len}], "
                    f"got {list(attend.shape)}"
                )
            check.same_device(ids=ids, attend=attend)
        self._fill(ids, weights, num_labels, pairs)

    @classmethod
    def over_edges(
        cls,
        edge_index: Tensor,
        ids: Tensor,
        weights: Tensor,
        num_labels: int,
        *,
        q_len: int,
        k_len: int | None = None,
        ptr: Tensor | None = None,
        q_ptr: Tensor | None = None,
        batch: Tensor | None = None,
        batch_size: int = 1,
    ) -> Self:
        """Give listed edges several weighted labels each; other pairs do not attend, and parallel edges each do.

        Args:
            edge_index: ``[2, E]``, integer, (key, query) by column, as in :class:`~relgraph.EdgeLabels`.
            ids: ``[E, M]``, integer, with M at least 1; -1 adds nothing.
            weights: ``[E, M]``, floating.
            num_labels: R; ids are in ``[-1, R)``.
            q_len: N_q, number of queries.
            k_len: N_k, number of keys; ``q_len`` by default.
            ptr: ``[G+1]``, integer, borders of a packed batch; no edge crosses a border.
            q_ptr: ``[G+1]``, integer, borders of the queries if they differ from those of the keys.
            batch: ``[E]``, integer, the batch row of each edge, for padded batches.
            batch_size: B, the number of batch rows; given with ``batch``.

        Returns:
            Labels of the listed edges.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: as :class:`~relgraph.EdgeLabels`; or ids and weights that do not fit the edges or each other.

        Example:
            >>> edge_index, lengths = torch.tensor([[0, 1], [1, 2]]), torch.tensor([[1.5], [2.0]])
            >>> weights = torch.exp(-((lengths - torch.arange(3)) ** 2))            # radial bases 0, 1 and 2
            >>> labels = rg.WeightedLabels.over_edges(edge_index, torch.arange(3).expand(2, 3), weights, 3, q_len=3)
            >>> labels
            WeightedLabels(q_len=3, k_len=3, num_labels=3, per_pair=3, edges=2)
        """
        ids, weights = _checked(ids, weights, num_labels, 2)
        none = torch.full(ids.shape[:1], UNLABELED, dtype=torch.int8, device=ids.device)
        pairs = EdgeLabels(
            edge_index, none, 0, q_len=q_len, k_len=k_len, ptr=ptr, q_ptr=q_ptr, batch=batch, batch_size=batch_size
        )
        labels = cls._make()
        labels._fill(ids, weights, num_labels, pairs)
        return labels

    def _fill(self, ids: Tensor, weights: Tensor, num_labels: int, pairs: Labels) -> None:
        batch_size = pairs.batch_size
        if ids.dim() == 4:
            sizes = {"ids": ids.shape[0], "weights": weights.shape[0], "attend": pairs.batch_size}
            batch_size = common_batch(*sizes.values())
            for name, size in sizes.items():
                if not check.among(size, 1, batch_size):
                    raise ValueError(f"{name} must have batch size 1 or {batch_size}, got {size}")
        self._set(
            ids=ids, weights=weights, num_labels=num_labels, pairs=pairs, q_len=pairs.q_len, k_len=pairs.k_len,
            batch_size=batch_size, q_ptr=pairs.q_ptr, k_ptr=pairs.k_ptr,
        )  # fmt: skip

    def with_weights(self, weights: Tensor) -> Self:
        """The same labels with other weights, of a next step; what was made of the ids is used again.

        Args:
            weights: ``[N_q, N_k, M]``, ``[B, N_q, N_k, M]`` or ``[E, M]``, as in the constructor.

        Returns:
            Labels with these weights.

        Raises:
            TypeError: weights that are not a tensor.
            ValueError: weights that are not floating, or of a shape or device that does not fit the ids.

        Example:
            >>> labels = rg.WeightedLabels(torch.zeros(2, 2, 1).long(), torch.ones(2, 2, 1), 1)
            >>> labels.with_weights(torch.zeros(2, 2, 1)).weights.sum()
            tensor(0.)
        """
        weights = _checked_weights(weights, self.ids)
        other = self._of(self.ids, weights if weights.dim() == self.ids.dim() else weights[None], self.pairs)
        if self._plan is not None and other.batch_size == self.batch_size:
            vars(other)["_plan"] = self._plan
        return other

    @property
    def device(self) -> torch.device:
        """The device of the ids."""
        return self.ids.device

    def to_dense(self) -> NoReturn:
        raise TypeError("weighted labels carry several ids per pair: read .ids and .weights")

    def rows(self, start: int, stop: int) -> Self:
        check_slice(start, stop, self.q_len)
        return self._cut(1, start, stop, self.pairs.rows(start, stop))

    def cols(self, start: int, stop: int) -> Self:
        check_slice(start, stop, self.k_len)
        return self._cut(2, start, stop, self.pairs.cols(start, stop))

    def _cut(self, axis: int, start: int, stop: int, pairs: Labels) -> Self:
        """The labels of some rows (axis 1) or columns (2), whose pairs are given."""
        if isinstance(self.pairs, EdgeLabels):
            ends = self.pairs.edge_index[2 - axis]
            return self._of_edges((ends >= start) & (ends < stop), pairs)
        ids, weights = (x.narrow(axis, start, stop - start) for x in (self.ids, self.weights))
        return self._of(ids, weights, pairs)

    def _of_edges(self, keep: Tensor, pairs: Labels) -> Self:
        """The labels of some of the edges, which are given."""
        return self._of(self.ids[keep], self.weights[keep], pairs)

    def _of(self, ids: Tensor, weights: Tensor, pairs: Labels) -> Self:
        made = self._make()
        made._fill(ids, weights, self.num_labels, pairs)
        return made

    @property
    def _weights(self) -> Tensor:
        return self.weights

    @property
    def _edges_only(self) -> bool:
        return self.pairs._edges_only

    @property
    def _several(self) -> bool:
        return self.pairs._several

    def _carries_no_ids(self) -> bool:
        return self.num_labels == 0 or without_ids(self.ids)

    def _cut_batch(self, start: int, stop: int) -> Self:
        pairs = self.pairs._batch_rows(start, stop)
        if isinstance(self.pairs, EdgeLabels):
            assert self.pairs.batch is not None
            return self._of_edges((self.pairs.batch >= start) & (self.pairs.batch < stop), pairs)
        ids, weights = (x if x.shape[0] == 1 else x[start:stop] for x in (self.ids, self.weights))
        return self._of(ids, weights, pairs)

    def _padded(self, length: int) -> Self:
        return self._of(self.ids, self.weights, self.pairs._padded(length))

    def _codes_at(self, pairs: Pairs) -> NoReturn:  # noqa: ARG002
        self.to_dense()

    def _count(self, batch: int, hidden: Tensor) -> Tensor:
        counts = self.pairs._count(batch, hidden)
        ids = self.ids.long()
        if isinstance(self.pairs, DenseLabels):
            ids = ids.masked_fill((self.pairs.ids == NOT_ATTENDING)[..., None], UNLABELED)
        if ids.dim() == 4:
            ids = ids.expand(batch, -1, -1, -1)
        elif self.batch_size == 1:
            ids = ids.repeat(batch, 1)
        carried = (ids >= 0).any(-1).sum()
        by_label = torch.bincount(ids[ids >= 0], minlength=self.num_labels)
        counts[SHIFT + UNLABELED] -= carried.to(counts.device)
        return torch.cat([counts, by_label.to(counts.device)])

    def _describe(self) -> list[str]:
        out = [*super()._describe(), f"per_pair={self.ids.shape[-1]}"]
        return [*out, f"edges={self.ids.shape[0]}"] if self.ids.dim() == 2 else out


def _checked(ids: Any, weights: Any, num_labels: Any, dim: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Ids in the smallest type, and weights."""
    check.length("num_labels", num_labels, most=check.MOST_IDS)
    ids = check.integer_tensor("ids", ids, dim=dim)
    check_local(ids=ids)
    if ids.shape[-1] == 0:
        raise ValueError(f"ids must hold at least one label per pair, got shape {list(ids.shape)}")
    check.id_range("ids", ids, num_labels)
    # a copy, or later changes to the caller's ids would go unchecked
    return ids.to(smallest_dtype(num_labels), copy=True), _checked_weights(weights, ids)


def _checked_weights(weights: Any, ids: Tensor) -> Tensor:
    """The weights, which fit the ids."""
    check.floating("weights", weights)
    check_local(weights=weights)
    if weights.dim() not in ({2} if ids.dim() == 2 else {3, 4}) or weights.shape[-3:] != ids.shape[-3:]:
        what = "[E, M]" if ids.dim() == 2 else "[N_q, N_k, M] or [B, N_q, N_k, M]"
        raise ValueError(
            f"weights must have the shape of ids, {what}, apart from the batch axis, got {list(weights.shape)} and ids "
            f"{list(ids.shape)}"
        )
    check.same_device(ids=ids, weights=weights)
    return weights
