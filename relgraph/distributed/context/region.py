"""The region of context parallelism: what layers and functions of relgraph do within it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from relgraph.arguments import check
from relgraph.distributed.collectives import gather
from relgraph.distributed.context import gathered, heads, ring
from relgraph.distributed.context.agreement import LABELS, agree, fingerprint, shared_seed
from relgraph.distributed.context.slices import Whole
from relgraph.distributed.layout import Layout
from relgraph.distributed.together import check_mesh
from relgraph.functional.attention import AttentionAux, aux_of
from relgraph.functional.check import check_labels_type, labels_from_ids
from relgraph.functional.region import Arguments, Region, entered
from relgraph.impl.call import Answer
from relgraph.labels import Labels

METHODS = ("allgather", "ring", "ulysses")
"""What travels: keys and values to all at once, or around a ring; or rows for heads."""

LAYOUTS = ("even", "head-tail")
"""The layouts that a name can ask for."""


@contextmanager
def context_parallel(
    mesh: DeviceMesh,
    *,
    method: Literal["allgather", "ring", "ulysses"] = "ring",
    layout: Layout | Literal["even", "head-tail"] = "even",
) -> Iterator[ContextParallel]:
    """Within this block each process holds some rows of every sequence, and attention sees the rows of all.

    Shards come in and shards go out: hand each layer, or :func:`~relgraph.relation_attention`, the rows of this process
    (:meth:`~relgraph.distributed.Layout.shard`), in forward and backward alike. Labels are those of the whole and are
    cut here, so that no process holds scores of all pairs; labelers of layers label the whole by themselves. Dense
    labels may also be given for the rows of this process only, ``[n, N]``. A mask of pairs has the rows of this
    process and all keys, ``[n, N]``; a mask of keys, such as ``key_padding_mask``, those of this process, ``[B, n]``.
    Absolute positions of :class:`~relgraph.SinusoidalPositions` and its kin count in the whole.

    Three methods give the same numbers. With N rows, P processes, E numbers of keys and values per row:

    - ``"allgather"``: every process gets all keys and values. It waits once, and keeps N · E numbers.
    - ``"ring"``: keys and values go around, and each process merges what its rows find. It keeps 2 N/P · E numbers, and
      backward computes forward again.
    - ``"ulysses"``: every process gets all rows of some heads. P must divide the heads of queries and keys.

    Every process computes parameters' gradients from its own rows: sum them over the mesh (average, if the loss is a
    mean over the rows of each process), as DistributedDataParallel or ``fully_shard`` over a mesh that includes this
    one does. Dropout draws the mask of the whole: process 0 draws the seed.

    The first call with certain labels and lengths compares them among all processes.

    Source: Liu, Zaharia, Abbeel 2023 (ring); Jacobs et al. 2023 (Ulysses); head and tail as in torch's own
    ``context_parallel``.

    Args:
        mesh: one axis of processes, such as ``init_device_mesh("cpu", (4,))`` or ``mesh["cp"]``.
        method: ``"ring"``, ``"allgather"`` or ``"ulysses"``.
        layout: which rows each process holds: ``"even"``, runs of equal length in the order of the processes;
            ``"head-tail"``, which gives equal work to all with ``is_causal``; or a
            :class:`~relgraph.distributed.Layout`.

    Yields:
        The region, whose ``layout_of`` and ``gather`` help with losses of the whole.

    Raises:
        TypeError: not a DeviceMesh.
        ValueError: a mesh of several axes, an unknown method, a layout for another number of processes. Within the
            block, on every process: lengths or labels that differ between processes, heads that P does not divide.
        NotImplementedError: within the block: weights (``need_weights``), caches, ``edge_attr`` and
            :func:`~relgraph.edge_attention`.

    Example:
        >>> from torch.distributed import destroy_process_group, init_process_group
        >>> from torch.distributed.device_mesh import init_device_mesh
        >>> init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> mesh, layer = init_device_mesh("cpu", (1,)), rg.RelationAttention(16, 4, num_labels=5)
        >>> x, labels = torch.randn(2, 8, 16), rg.ClippedDistance(2)(8)
        >>> with rg.distributed.context_parallel(mesh, method="ring") as region:
        ...     layout = region.layout_of(8)
        ...     z = layer(layout.shard(x, mesh.get_local_rank()), labels=labels)
        >>> torch.allclose(z, layer(x, labels=labels), atol=1e-5)
        True
        >>> destroy_process_group()
    """
    region = ContextParallel(mesh, method, layout)
    with entered(region):
        yield region


class ContextParallel(Region):
    """What :func:`context_parallel` enters.

    Attributes:
        method: how rows meet keys.
        group: the processes.
        rank: this process among them.
    """

    def __init__(self, mesh: Any, method: Any, layout: Any) -> None:
        self.group = check_mesh(mesh)
        self.method = check.choice("method", method, METHODS)
        self.size, self.rank = mesh.size(), mesh.get_local_rank()
        if isinstance(layout, Layout):
            if layout.processes != self.size:
                raise ValueError(f"layout must be for {self.size} processes, as the mesh, got {layout.processes}")
        else:
            check.choice("layout", layout, LAYOUTS)
        self.layout: Layout | str = layout
        self._agreed: dict[tuple[Any, ...], Any] = {}

    def layout_of(self, length: int) -> Layout:
        """Which rows of a whole of ``length`` rows each process holds.

        Args:
            length: N.

        Returns:
            The layout.

        Raises:
            TypeError: not an int.
            ValueError: a length that the processes do not divide, or another one than that of the given layout.
        """
        if isinstance(self.layout, Layout):
            if check.length("length", length) != self.layout.length:
                raise ValueError(f"length must be that of the layout, {self.layout.length}, got {length}")
            return self.layout
        return (Layout.even if self.layout == "even" else Layout.head_tail)(length, self.size)

    def gather(self, x: Tensor, dim: int = 1) -> Tensor:
        """All rows in order, from the shards of all processes; backward sums the gradients of each row.

        Args:
            x: rows of this process on axis ``dim``.
            dim: the axis of rows.

        Returns:
            The whole, on every process.
        """
        return gather(x, self._layout(x.shape[dim]), dim, self.group)

    def whole_length(self, length: int) -> int:
        return self.layout.length if isinstance(self.layout, Layout) else length * self.size

    def positions(self, length: int, device: Any) -> Tensor:
        return self._layout(length).positions(self.rank, device)

    def all_keys(self, padding: Tensor) -> Tensor:
        return gather(padding, self._layout(padding.shape[-1]), padding.dim() - 1, self.group)

    def _layout(self, length: int) -> Layout:
        """The layout of a whole of which this process holds ``length`` rows."""
        layout = self.layout_of(self.whole_length(length))
        if layout.lengths[self.rank] != length:
            raise ValueError(
                f"inputs must hold the {layout.lengths[self.rank]} rows that the layout gives to process {self.rank}, "
                f"got {length}"
            )
        return layout

    def attend(self, given: Arguments, impl: str | None) -> tuple[Tensor, AttentionAux]:
        if torch.compiler.is_compiling():
            # not a decorator: that would load the compiler with relgraph
            outside: Any = torch.compiler.disable(self._attend, reason="context_parallel talks to other processes")
            return outside(given, impl)
        return self._attend(given, impl)

    def _attend(self, given: Arguments, impl: str | None) -> tuple[Tensor, AttentionAux]:
        given, whole, queries, keys = self._opened(given)
        seed = None
        if given.dropout_p:
            seed = shared_seed(given.query.device, self.group, given.drawn.seed)
            given = given._replace(drawn=given.drawn._replace(seed=None))
        if self.method == "ring":
            answer = ring.attend(given, ring.Ring(whole, queries, keys, self.group, seed, impl))
        else:
            method = gathered if self.method == "allgather" else heads
            answer = method.attend(given, whole, queries, keys, self.group, seed, impl)
        return self._closed(answer, given, whole)

    def _closed(self, answer: Answer, given: Arguments, whole: Whole) -> tuple[Tensor, AttentionAux]:
        """What the caller gets of an answer."""
        output = answer.output.to(given.query.dtype)
        output = output.squeeze(0).transpose(0, 1) if whole.packed else output
        return output, aux_of(answer, whole.labels, whole.packed, need_lse=True)

    def _opened(self, given: Arguments) -> tuple[Arguments, Whole, Layout, Layout]:
        """The checked arguments, with a mask of all keys, and what all processes hold."""
        check_labels_type(given.labels)
        if given.need_weights:
            raise NotImplementedError(
                "need_weights needs all pairs of a row on one process: leave the context_parallel block for it"
            )
        if any(x is not None for x in given.edge):
            raise NotImplementedError("edge_attr cannot be cut by rows and keys: leave the context_parallel block")
        packed = isinstance(given.labels, Labels) and given.labels.packed
        axis, dims = (0, 3) if packed else (2, 4)
        for name, x in (("query", given.query), ("key", given.key), ("value", given.value)):
            if check.floating(name, x).dim() != dims:
                shape = "[T, H, D], as the labels are packed" if packed else "[B, H, N, D]"
                raise ValueError(f"{name} must have shape {shape}, got {list(x.shape)}")
        if self.method == "ulysses":
            heads.check_heads(given, self.size)
        self._agree_on_lengths(given, axis)
        queries, keys = self._layout(given.query.shape[axis]), self._layout(given.key.shape[axis])
        labels = given.labels
        if isinstance(labels, Tensor):
            labels = labels_from_ids(labels, given.tables)
        whole = self._whole(labels, queries, keys, axis)
        self._agree_on_labels(given, whole)
        dtype = check.autocast_dtype(given.query.device.type)
        if dtype is not None and given.query.dtype != torch.float64:
            given = given._replace(**{name: getattr(given, name).to(dtype) for name in ("query", "key", "value")})
        mask = self._whole_mask(given, whole, keys)
        return given._replace(labels=None, attn_mask=mask), whole, queries, keys

    def _whole(self, labels: Labels | None, queries: Layout, keys: Layout, axis: int) -> Whole:
        """The labels with the lengths of the whole."""
        rows_given = None
        if labels is not None:
            mine = queries.lengths[self.rank]
            fits = labels.k_len == keys.length and labels.q_len in (queries.length, mine)
            if not fits:
                raise ValueError(
                    f"labels must cover the whole, [N_q, N_k] = [{queries.length}, {keys.length}], or the rows of this "
                    f"process and all keys, [{mine}, {keys.length}], got [{labels.q_len}, {labels.k_len}]"
                )
            if labels.q_len != queries.length:
                if self.method == "ulysses" or labels.packed:
                    what = "method='ulysses' attends from all rows" if self.method == "ulysses" else "they are packed"
                    raise ValueError(f"labels must cover all {queries.length} queries, as {what}, got {labels.q_len}")
                rows_given = queries.runs[self.rank]
        return Whole(labels, rows_given, queries.length, keys.length, axis)

    def _whole_mask(self, given: Arguments, whole: Whole, keys: Layout) -> Tensor | None:
        """The mask with all keys."""
        mask = given.attn_mask
        if mask is None:
            return None
        check.tensor("attn_mask", mask)
        if mask.dim() == 0 or mask.shape[-1] in (1, whole.k_len):
            return mask
        if mask.shape[-1] == keys.lengths[self.rank] and (mask.dim() < 2 or mask.shape[-2] == 1):
            return gather(mask, keys, mask.dim() - 1, self.group)
        raise ValueError(
            f"attn_mask must have all {whole.k_len} keys on its last axis, or be a mask of the "
            f"{keys.lengths[self.rank]} keys of this process for all rows, [..., 1, n], got {list(mask.shape)}"
        )

    def _agree_on_lengths(self, given: Arguments, axis: int) -> None:
        """Compare lengths and shapes among processes, once for each."""
        own = isinstance(self.layout, Layout)
        numbers = {
            "the length of query": 0 if own else given.query.shape[axis],
            "the length of key": 0 if own else given.key.shape[axis],
            "the batch size": 1 if axis == 0 else given.query.shape[0],
            "the number of heads": given.query.shape[1],
            "the head size": given.query.shape[-1],
            "method": METHODS.index(self.method),
        }
        known = tuple(numbers.values())
        if known not in self._agreed:
            agree(numbers, given.query.device, self.group, {"method": METHODS})
            self._agreed[known] = None

    def _agree_on_labels(self, given: Arguments, whole: Whole) -> None:
        """Compare labels among processes, once for each."""
        known = "labels", id(whole.labels)
        if known not in self._agreed:
            number = fingerprint(whole.labels, whole=whole.rows_given is None)
            agree({LABELS: number}, given.query.device, self.group, {})
            self._agreed[known] = whole.labels  # kept, so that no other labels get its id
