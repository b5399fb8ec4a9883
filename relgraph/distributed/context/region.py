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
from relgraph.distributed.context.calls import Calls
from relgraph.distributed.context.recompute import bind_checkpoints
from relgraph.distributed.layout import LAYOUTS, Layout, check_axis
from relgraph.distributed.together import raise_together
from relgraph.functional.region import entered

bind_checkpoints()


@contextmanager
def context_parallel(
    mesh: DeviceMesh,
    *,
    layout: Literal["even", "head-tail"] = "even",
) -> Iterator[ContextParallel]:
    """Let attention see the rows of all processes while each process holds some rows of every sequence.

    Layers and :func:`~relgraph.relation_attention` take the rows of this process
    (:meth:`~relgraph.distributed.Layout.shard`) and return its rows, in forward and backward alike. Labels cover the
    whole sequence, and the region cuts them, so no process holds scores of all pairs; labelers of layers label the
    whole sequence by themselves. Dense labels may also cover only the rows of this process, ``[n, N]``. A mask of pairs
    has the rows of this process and all keys, ``[n, N]``; a mask of keys, such as ``key_padding_mask``, has the keys of
    this process, ``[B, n]``. A size of 1 is one row (key) for all, unless every process holds one row (key). Layers of
    absolute positions, such as :class:`~relgraph.SinusoidalPositions`, use positions in the whole sequence.

    Every process gets all keys and values, first for one half of the heads, then for the other. With N rows, P
    processes and E elements of keys and values per row, it keeps N · E elements, and in backward holds half as many
    gradients at a time. It sends (P - 1) N/P · E elements each way.

    Every process computes parameters' gradients from its own rows. Sum them over the mesh, or average them if the loss
    is a mean over the rows of each process; DistributedDataParallel and ``fully_shard`` do this over a mesh that
    includes this one. Dropout draws the mask of the whole sequence, with a seed that process 0 draws.

    When the region begins, the processes compare the layout. Each new form of call (labels, shapes, dtypes, options)
    is checked whole and compared, once per region. So enter a region for each step: a difference in a form that some
    processes know already ends in another error, or at the time limit of the processes.

    The region is that of this thread: other threads attend to what they have. Backward may run after the block or in
    another thread, and checkpointing of both kinds computes forward again in its region.

    Source: all-gather as in Grattafiori et al. 2024, "The Llama 3 Herd of Models"; head and tail as in torch's own
    ``context_parallel``.

    Args:
        mesh: one axis of processes, such as ``init_device_mesh("cpu", (4,))`` or ``mesh["cp"]``.
        layout: which rows each process holds: ``"even"`` gives runs of equal length in the order of the processes,
            ``"head-tail"`` gives equal work to all with ``is_causal``. See :class:`~relgraph.distributed.Layout`.

    Yields:
        The region, whose ``layout_of`` and ``gather`` help with losses over the whole sequence.

    Raises:
        ValueError: all processes raise together: layouts that differ; within the block, arguments that differ, and
            whatever else a call raises.
        NotImplementedError: within the block: weights (``need_weights``), caches, ``edge_attr`` and
            :func:`~relgraph.edge_attention`.

    Example:
        >>> from torch.distributed import destroy_process_group, init_process_group
        >>> from torch.distributed.device_mesh import init_device_mesh
        >>> init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> mesh, layer = init_device_mesh("cpu", (1,)), rg.RelationAttention(16, 4, num_labels=5)
        >>> x, labels = torch.randn(2, 8, 16), rg.ClippedDistance(2)(8)
        >>> with rg.distributed.context_parallel(mesh) as region:
        ...     layout = region.layout_of(8)
        ...     z = layer(layout.shard(x, mesh.get_local_rank()), labels=labels)
        >>> torch.allclose(z, layer(x, labels=labels), atol=1e-5)
        True
        >>> destroy_process_group()
    """
    region = ContextParallel(mesh, layout)
    device = torch.device(mesh.device_type)
    # shards of equal length from different layouts would use the labels of other rows, and no other check would notice
    raise_together(None, {"layout": region.layout}, device, region.group)
    with entered(Calls(region._layout_of_shards, region.rank, region.group, device)):
        yield region


class ContextParallel:
    """The region that :func:`context_parallel` yields: it says which rows this process holds, and joins all rows.

    Attributes:
        layout: ``"even"`` or ``"head-tail"``.
        group: the processes.
        rank: the number of this process among them.
        size: P, the number of processes.

    Args:
        mesh: this and all further arguments as in :func:`~relgraph.distributed.context_parallel`.

    Example:
        >>> from torch.distributed import destroy_process_group, init_process_group
        >>> from torch.distributed.device_mesh import init_device_mesh
        >>> init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> with rg.distributed.context_parallel(init_device_mesh("cpu", (1,)), layout="head-tail") as region:
        ...     region.layout_of(8).runs(0), region.gather(torch.randn(2, 8, 16)).shape
        (((0, 4), (4, 8)), torch.Size([2, 8, 16]))
        >>> destroy_process_group()
    """

    def __init__(self, mesh: DeviceMesh, layout: Literal["even", "head-tail"] = "even") -> None:
        if not isinstance(mesh, DeviceMesh):
            raise TypeError(f"mesh must be a DeviceMesh, got {type(mesh).__name__}")
        if mesh.ndim != 1:
            raise ValueError(f"mesh must have one axis, such as mesh['cp'], got {mesh.ndim}")
        self.group = mesh.get_group()
        self.size, self.rank = mesh.size(), mesh.get_local_rank()
        check.choice("layout", layout, LAYOUTS)
        self.layout: Literal["even", "head-tail"] = layout

    def layout_of(self, length: int) -> Layout:
        """Which rows of a sequence of ``length`` rows each process holds.

        Args:
            length: N, the number of rows of all processes, which P divides; with ``"head-tail"`` 2P.

        Returns:
            The layout.
        """
        return Layout(length, self.size, self.layout)

    def gather(self, x: Tensor, dim: int = 1) -> Tensor:
        """Join the shards of all processes into all rows in order; backward sums the gradients of each row.

        Args:
            x: the rows of this process on axis ``dim``, such as ``[B, n, E]``.
            dim: the axis of rows.

        Returns:
            All rows, on every process, such as ``[B, N, E]``.
        """
        check_axis(x, dim)
        return gather(x, self._layout_of_shards(x.shape[dim]), dim, self.group)

    def _layout_of_shards(self, length: int) -> Layout:
        """The layout of a sequence of which each process holds ``length`` rows."""
        return self.layout_of(check.length("length", length) * self.size)
