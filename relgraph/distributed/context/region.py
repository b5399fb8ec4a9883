"""The region of context parallelism, as users see it: the ``with`` block, and the object that it yields."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from relgraph.arguments import check
from relgraph.distributed.collectives import gather
from relgraph.distributed.context.calls import METHODS, Calls
from relgraph.distributed.context.recompute import bind_checkpoints
from relgraph.distributed.layout import Layout, check_axis
from relgraph.distributed.together import check_mesh, raise_together
from relgraph.functional.region import entered

bind_checkpoints()

LAYOUTS = ("even", "head-tail")
"""The layouts that a name can ask for."""


@contextmanager
def context_parallel(
    mesh: DeviceMesh,
    *,
    method: Literal["allgather", "ring", "ulysses"] = "ring",
    layout: Layout | Literal["even", "head-tail"] = "even",
) -> Iterator[ContextParallel]:
    """Let attention see the rows of all processes while each process holds some rows of every sequence.

    Layers and :func:`~relgraph.relation_attention` take the rows of this process
    (:meth:`~relgraph.distributed.Layout.shard`) and return its rows, in forward and backward alike. Labels cover the
    whole sequence, and the region cuts them, so no process holds scores of all pairs; labelers of layers label the
    whole sequence by themselves. Dense labels may also cover only the rows of this process, ``[n, N]``. A mask of pairs
    has the rows of this process and all keys, ``[n, N]``; a mask of keys, such as ``key_padding_mask``, has the keys of
    this process, ``[B, n]``. A size of 1 is one row (key) for all, unless every process holds one row (key). Layers of
    absolute positions, such as :class:`~relgraph.SinusoidalPositions`, use positions in the whole sequence.

    Three methods give the same results. With N rows, P processes, E elements of keys and values per row:

    - ``"allgather"``: every process gets all keys and values, first for one half of the heads, then for the other. It
      keeps N · E elements, and in backward holds half as many gradients at a time. It sends (P - 1) N/P · E elements
      each way.
    - ``"ring"``: keys and values go from process to process, and each merges the attention of its rows to them. It
      keeps N/P · E elements, holds twice as many while they travel, and backward computes forward again. It sends as
      much as all-gather does, and in backward also the sums of gradients, N · E elements in float32.
    - ``"ulysses"``: every process gets all rows of some heads. P must divide the heads of queries and keys. It sends
      all but 1/P of its queries, keys, values and outputs each way.

    Every process computes parameters' gradients from its own rows. Sum them over the mesh, or average them if the loss
    is a mean over the rows of each process; DistributedDataParallel and ``fully_shard`` do this over a mesh that
    includes this one. Dropout draws the mask of the whole sequence, with a seed that process 0 draws.

    When the region begins, the processes compare the layout. Each new form of call (labels, shapes, dtypes, options)
    is checked whole and compared, once per region. So enter a region for each step: a difference in a form that some
    processes know already ends in another error, or at the time limit of the processes.

    The region is that of this thread: other threads attend to what they have. Backward may run after the block or in
    another thread, and checkpointing of both kinds computes forward again in its region.

    Source: Liu, Zaharia, Abbeel 2023 (ring); Jacobs et al. 2023 (Ulysses); head and tail as in torch's own
    ``context_parallel``.

    Args:
        mesh: one axis of processes, such as ``init_device_mesh("cpu", (4,))`` or ``mesh["cp"]``.
        method: ``"ring"``, ``"allgather"`` or ``"ulysses"``.
        layout: which rows each process holds: ``"even"`` gives runs of equal length in the order of the processes,
            ``"head-tail"`` gives equal work to all with ``is_causal``; or a :class:`~relgraph.distributed.Layout`.

    Yields:
        The region, whose ``layout_of`` and ``gather`` help with losses over the whole sequence.

    Raises:
        TypeError: not a DeviceMesh.
        ValueError: a mesh of several axes, an unknown method, a layout for another number of processes. All processes
            raise together: layouts that differ; within the block, arguments that differ, heads that P does not divide,
            and whatever else a call raises.
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
    even, device = not isinstance(region.layout, Layout), torch.device(mesh.device_type)
    # shards of equal length from different layouts would use the labels of other rows, and no other check would notice
    described = str(region.layout.runs) if isinstance(region.layout, Layout) else region.layout
    raise_together(None, {"layout": described}, device, region.group)
    with entered(Calls(region.method, region._shards_of, even, region.group, device)):
        yield region


class ContextParallel:
    """The region that :func:`context_parallel` yields: it says which rows this process holds, and joins all rows.

    Attributes:
        method: ``"allgather"``, ``"ring"`` or ``"ulysses"``.
        layout: the layout, or the name of the layout that you asked for.
        group: the processes.
        rank: the number of this process among them.
        size: P, the number of processes.

    Args:
        mesh: this and all further arguments as in :func:`~relgraph.distributed.context_parallel`.

    Raises:
        TypeError, ValueError: not a DeviceMesh, or the errors of ``context_parallel`` when its block begins.

    Example:
        >>> from torch.distributed import destroy_process_group, init_process_group
        >>> from torch.distributed.device_mesh import init_device_mesh
        >>> init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> with rg.distributed.context_parallel(init_device_mesh("cpu", (1,)), layout="head-tail") as region:
        ...     region.method, region.layout_of(8).runs, region.gather(torch.randn(2, 8, 16)).shape
        ('ring', (((0, 4), (4, 8)),), torch.Size([2, 8, 16]))
        >>> destroy_process_group()
    """

    def __init__(
        self,
        mesh: DeviceMesh,
        method: Literal["allgather", "ring", "ulysses"] = "ring",
        layout: Layout | Literal["even", "head-tail"] = "even",
    ) -> None:
        self.group = check_mesh(mesh)
        self.method = check.choice("method", method, METHODS)
        self.size, self.rank = mesh.size(), mesh.get_local_rank()
        if isinstance(layout, Layout):
            if layout.processes != self.size:
                raise ValueError(f"layout must be for {self.size} processes, as the mesh, got {layout.processes}")
        else:
            check.choice("layout", layout, LAYOUTS)
        self.layout: Layout | str = layout

    def layout_of(self, length: int) -> Layout:
        """Which rows of a sequence of ``length`` rows each process holds.

        Args:
            length: N, the number of rows of all processes.

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
        """Join the shards of all processes into all rows in order; backward sums the gradients of each row.

        Args:
            x: the rows of this process on axis ``dim``, such as ``[B, n, E]``.
            dim: the axis of rows.

        Returns:
            All rows, on every process, such as ``[B, N, E]``.

        Raises:
            TypeError: not a Tensor, or an axis that is not an int.
            ValueError: an axis that ``x`` does not have, or another number of rows than the layout gives to this
                process.
        """
        check_axis(x, dim)
        return gather(x, self._shards_of(x.shape[dim]), dim, self.group)

    def _shards_of(self, length: int) -> Layout:
        """The layout of a sequence of which this process holds ``length`` rows."""
        check.length("length", length)
        layout = self.layout if isinstance(self.layout, Layout) else self.layout_of(length * self.size)
        if layout.lengths[self.rank] != length:
            raise ValueError(
                f"inputs must hold the {layout.lengths[self.rank]} rows that the layout gives to process {self.rank}, "
                f"got length {length}"
            )
        return layout
