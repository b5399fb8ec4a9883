"""One graph whose nodes are split over processes: each holds the edges into its nodes, and sends only border nodes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from relgraph.arguments import check
from relgraph.distributed.collectives import exchange
from relgraph.distributed.layout import Layout
from relgraph.distributed.together import check_mesh, raise_together
from relgraph.labels import EdgeLabels


class NodePartition:
    """The part of a graph that one process holds: some nodes, all edges into them, and the nodes that it exchanges.

    A node attends to the sources of its incoming edges. So a process needs its own nodes and also the sources that
    other processes own: its *halo*. The constructor works out, once per graph, which nodes these are and which of its
    own nodes each other process needs. :meth:`with_halo` then sends features across borders, each node once to each
    process that needs it; backward sends gradients back and adds them up. No process ever holds the whole graph.

    Local numbers count the nodes of this process first, in the order of its shard, and then the halo. A layer takes
    sources and targets as a pair::

        conv((partition.with_halo(x), x), partition.labels(edge_type, num_relations))

    and returns the nodes of this process, for the next layer. Outputs and losses are the same as on one process. Each
    process computes parameters' gradients from its own nodes; their sums over the processes are the same as well.

    Each process projects the halo that it needs, so it projects ``num_own + num_halo`` nodes. Sending projected keys
    and values would avoid that but send about twice as much; :func:`~relgraph.edge_attention` takes them that way too.
    Dropout masks differ from those on one process: each process draws its own, by local numbers. Give each process
    another seed after you have made the model.

    Args:
        mesh: one axis of processes, such as ``init_device_mesh("cpu", (4,))`` or ``mesh["graph"]``.
        layout: which nodes each process owns.
        edge_index: ``[2, E]``, integer, (source, target) by column, in numbers of the whole graph: every edge into the
            nodes of this process and no other edge. :meth:`cut` takes all edges of the whole graph.

    Attributes:
        layout: which nodes each process owns.
        rank: the number of this process in the mesh.
        group: the processes.
        edge_index: ``[2, E]``, the same edges in the same order, in local numbers.
        edge_ids: ``[E]``, the position of each edge among the given edges, from which :meth:`cut` selects.
        node_ids: ``[num_own + num_halo]``, the number of each local node in the whole graph.
        num_own: how many nodes this process owns.
        num_halo: how many nodes of others it needs.
        num_sent: how many rows it sends in :meth:`with_halo`; in backward it sends ``num_halo``.

    Raises:
        TypeError: an argument of the wrong kind. Every process raises the errors of ``layout`` and ``edge_index``, even
            if only one of them got a wrong argument.
        ValueError: a mesh of several axes; a layout for another number of processes, or layouts that differ between
            processes; edges whose target this process does not own, or whose source does not exist.

    Example:
        >>> from torch.distributed import destroy_process_group, init_process_group
        >>> from torch.distributed.device_mesh import init_device_mesh
        >>> init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> mesh, layout = init_device_mesh("cpu", (1,)), rg.distributed.Layout.even(4, 1)
        >>> edge_index, edge_type = torch.tensor([[0, 1, 3], [1, 2, 2]]), torch.tensor([0, 1, 0])
        >>> partition = rg.distributed.NodePartition.cut(mesh, layout, edge_index)
        >>> conv, x = rg.pyg.RelationConv(8, 4, num_relations=2), torch.randn(4, 8)
        >>> labels = partition.labels(edge_type[partition.edge_ids], 2)
        >>> conv((partition.with_halo(x), x), labels).shape
        torch.Size([4, 4])
        >>> destroy_process_group()
    """

    def __init__(self, mesh: DeviceMesh, layout: Layout, edge_index: Tensor) -> None:
        self._begin(mesh, layout, edge_index, whole=False)

    @classmethod
    def cut(cls, mesh: DeviceMesh, layout: Layout, edge_index: Tensor) -> NodePartition:  # noqa: D417
        """Make the part of this process from the edges of the whole graph.

        Args:
            mesh: this and all further arguments as in :class:`~relgraph.distributed.NodePartition`.
            edge_index: ``[2, E]``, integer, all edges; those into other processes' nodes are dropped.

        Returns:
            The part, whose ``edge_ids`` select the relations and features of its edges, as in
            ``edge_type[partition.edge_ids]``.

        Raises:
            TypeError: an argument of the wrong kind.
            ValueError: as of the class; edges between nodes that do not exist.
        """
        partition = cls.__new__(cls)
        partition._begin(mesh, layout, edge_index, whole=True)
        return partition

    def _begin(self, mesh: Any, layout: Any, edge_index: Any, *, whole: bool) -> None:
        """Check the arguments on all processes together, and work out which nodes travel."""
        self.group = check_mesh(mesh)
        self.rank, self.layout = mesh.get_local_rank(), layout
        self._device = torch.device(mesh.device_type)
        error, found = None, None
        try:
            found = _read(mesh, layout, edge_index, whole)
        except (TypeError, ValueError) as problem:
            error = problem
        runs = str(layout.runs) if isinstance(layout, Layout) else ""
        raise_together(error, {"layout": runs} if runs else {}, self._device, self.group)
        assert found is not None
        index, self.edge_ids, ends = found
        self.num_own = layout.lengths[self.rank]
        own = layout.positions(self.rank, index.device)
        remote = ends.source_owner != self.rank
        # places count nodes by process, so the sorted halo is in the order of the processes
        halo, number = ends.source_place[remote].unique(return_inverse=True)
        self.num_halo = halo.shape[0]
        source = ends.source_row.clone()
        source[remote] = self.num_own + number
        self.edge_index = torch.stack([source, ends.target_row])
        beyond = index.new_empty(self.num_halo, dtype=torch.int64)
        beyond[number] = index[0, remote].long()
        self.node_ids = torch.cat([own, beyond])
        self._request(halo)

    def _request(self, halo: Tensor) -> None:
        """Send each process the numbers of its rows that this one needs, and receive which rows it needs from here."""
        firsts = _firsts(self.layout).to(halo.device)
        borders = torch.searchsorted(halo, firsts)
        counts = borders.diff()
        self._received: list[int] = counts.tolist()
        wanted = halo - firsts[:-1].repeat_interleave(counts)
        asked = exchange(list(counts.split(1)), [1] * self.layout.processes, self.group)
        self._sent: list[int] = torch.cat(asked).tolist()
        self._rows = torch.cat(exchange(wanted.split(self._received), self._sent, self.group))
        self.num_sent = self._rows.shape[0]

    def with_halo(self, x: Tensor) -> Tensor:
        """Append the rows of the halo to those of this process's nodes; differentiable, to any order.

        All processes must call this at the same time, and all must run backward if one does.

        Args:
            x: ``[num_own, ...]``, a row for each node of this process in the order of its shard; of the same dtype and
                with the same further axes on all processes.

        Returns:
            ``[num_own + num_halo, ...]``, in the order of ``node_ids``.

        Raises:
            TypeError: not a Tensor.
            ValueError: another number of rows, a device other than that of ``edge_index``, or dtypes, further axes or
                ``requires_grad`` that differ between processes. Every process raises it.
        """
        if torch.compiler.is_compiling():
            # not a decorator: that would load the compiler with relgraph
            outside: Any = torch.compiler.disable(self._with_halo, reason="with_halo talks to other processes")
            return outside(x)
        return self._with_halo(x)

    def _with_halo(self, x: Tensor) -> Tensor:
        error, described = None, {}
        try:
            self._check_rows(x)
            gradient = x.requires_grad and torch.is_grad_enabled()
            described = {"x": f"{x.dtype} [n, {', '.join(map(str, x.shape[1:]))}], requires_grad={gradient}"}
        except (TypeError, ValueError) as problem:
            error = problem
        raise_together(error, described, self._device, self.group)
        return x if self.layout.processes == 1 else _Exchanged.apply(x, self, False)

    def _check_rows(self, x: Any) -> None:
        if check.tensor("x", x).dim() == 0 or x.shape[0] != self.num_own:
            raise ValueError(
                f"x must have a row for each of the {self.num_own} nodes of this process, got shape {list(x.shape)}"
            )
        check.same_device(edge_index=self.edge_index, x=x)

    def labels(self, ids: Tensor, num_labels: int) -> EdgeLabels:
        """Make labels of the edges, with a relation each, which are sorted once for all layers and steps.

        Args:
            ids: ``[E]``, integer, the relation of each edge in the order of ``edge_index``; -1 for none.
            num_labels: R; ids are in ``[-1, R)``.

        Returns:
            Labels of ``num_own`` queries and ``num_own + num_halo`` keys.

        Raises:
            TypeError: an argument of the wrong kind.
            ValueError: another number of ids than edges, or ids out of range. Nothing travels here, so only the process
                with the wrong ids raises this.
        """
        return EdgeLabels(self.edge_index, ids, num_labels, q_len=self.num_own, k_len=self.num_own + self.num_halo)

    def __repr__(self) -> str:
        parts = f"rank={self.rank}, processes={self.layout.processes}, num_own={self.num_own}"
        return f"NodePartition({parts}, num_halo={self.num_halo}, edges={self.edge_ids.shape[0]})"


class _Exchanged(torch.autograd.Function):
    """Own nodes with the halo; or the transpose, if ``back``: each is the backward of the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, partition: NodePartition, back: bool) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.partition, ctx.back = partition, back
        rows, sent, received, group = partition._rows, partition._sent, partition._received, partition.group
        if not back:
            return torch.cat([x, *exchange(x.index_select(0, rows).split(sent), received, group)])
        own, beyond = x.split([partition.num_own, partition.num_halo])  # whose owners add it to their own
        return own.index_add(0, rows, torch.cat(exchange(beyond.split(received), sent, group)))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Exchanged.apply(grad, ctx.partition, not ctx.back), None, None


class _Ends(NamedTuple):
    """Where the ends of edges are, ``[E]`` each."""

    source_owner: Tensor
    source_row: Tensor  # among the nodes of its owner
    source_place: Tensor  # among all nodes, those of process 0 first
    target_row: Tensor  # among the nodes of this process


def _read(mesh: DeviceMesh, layout: Any, edge_index: Any, whole: bool) -> tuple[Tensor, Tensor, _Ends]:
    """The edges of this process, their positions among those given, and where their ends are."""
    if not isinstance(layout, Layout):
        raise TypeError(f"layout must be a Layout, got {type(layout).__name__}")
    if layout.processes != mesh.size():
        raise ValueError(f"layout must be for {mesh.size()} processes, as the mesh, got {layout.processes}")
    index = check.integer_tensor("edge_index", edge_index, dim=2)
    if index.shape[0] != 2:
        raise ValueError(f"edge_index must have shape [2, E], got {list(index.shape)}")
    check.data("edge_index", index)
    if index.device.type != mesh.device_type:
        raise ValueError(f"edge_index must be on the device of the mesh, {mesh.device_type}, got {index.device}")
    for what, ends in zip(("source", "target"), index, strict=True):
        check.id_range(f"edge_index: every {what}", ends, layout.length, minimum=0)
    rank = mesh.get_local_rank()
    owner, row = _owners(layout, index[1])
    edges = torch.arange(index.shape[1], device=index.device)
    mine = owner == rank
    if whole:
        index, edges, row = index[:, mine], edges[mine], row[mine]
    elif not bool(mine.all()):
        e = int((~mine).nonzero()[0])
        source, target = index[:, e].tolist()
        raise ValueError(
            f"edge_index must hold edges into the nodes of this process, got edge {e}: {source} -> {target}, "
            f"and process {int(owner[e])} owns {target}"
        )
    owner, source = _owners(layout, index[0])
    place = _firsts(layout).to(index.device)[owner] + source
    return index, edges, _Ends(owner, source, place, row)


def _firsts(layout: Layout) -> Tensor:
    """How many nodes the processes before each own, and how many there are: ``[P + 1]``."""
    return torch.tensor([0, *layout.lengths]).cumsum(0)


def _owners(layout: Layout, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """The owner of each node, and its row among those that it owns."""
    table = []
    for rank, runs in enumerate(layout.runs):
        at = 0
        for start, stop in runs:
            if stop > start:
                table.append((start, rank, at))
            at += stop - start
    starts, ranks, rows = torch.tensor(sorted(table), device=nodes.device, dtype=torch.int64).view(-1, 3).T.contiguous()
    nodes = nodes.long().contiguous()
    run = torch.searchsorted(starts, nodes, right=True) - 1
    return ranks[run], rows[run] + nodes - starts[run]
