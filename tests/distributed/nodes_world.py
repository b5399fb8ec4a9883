"""Graphs whose nodes are split over processes, case by case, compared with one process."""

from __future__ import annotations

import re
from functools import partial

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import relgraph as rg
from tests.distributed.worlds import caught

Layout, NodePartition = rg.distributed.Layout, rg.distributed.NodePartition
NODES, RELATIONS, WIDTH, FEATURES = 20, 3, 6, 2
F64 = torch.float64


class Network(nn.Module):
    """Two layers over one graph, split or not."""

    def __init__(self, width=WIDTH, **options):
        super().__init__()
        options = {"num_relations": RELATIONS, "edge_dim": FEATURES, **options}
        if options.get("score") == "additive":
            options["score"] = rg.score.Additive.learned(2, 4)
        if options.get("tables") == "tied":
            options["tables"] = rg.RelationTables(RELATIONS, 4, 2, tied=True)
        self.first = rg.pyg.RelationConv(width, 4, heads=2, **options)
        self.second = rg.pyg.RelationConv(8, 4, heads=2, concat=False, beta=True, **options)

    def forward(self, x, edges, edge_attr=None, edge_type=None, with_halo=None):
        for layer in (self.first, self.second):
            nodes = x if with_halo is None else (with_halo(x), x)
            x = layer(nodes, edges, edge_type, edge_attr).tanh()
        return x


def graph():
    """Edges with self-loops, parallel edges and two nodes without incoming edges; their relations and features."""
    made = torch.Generator().manual_seed(0)
    index = torch.randint(NODES, (2, 90), generator=made)
    index = index[:, (index[1] != 3) & (index[1] != NODES - 1)]
    index = torch.cat([index, index[:, :7], torch.tensor([[5, 6], [5, 6]])], 1)
    types = torch.randint(-1, RELATIONS, index.shape[1:], generator=made)
    attr = torch.randn(index.shape[1], FEATURES, generator=made, dtype=F64)
    return index, types, attr, torch.randn(NODES, WIDTH, generator=made, dtype=F64)


def network(**options):
    torch.manual_seed(1)
    return Network(**options).double()


def uneven(size):
    return Layout.by_cost(torch.ones(NODES), size)


def by_edges(size):
    index = graph()[0]
    return Layout.by_cost(rg.distributed.row_costs(rg.EdgeLabels(index, 0 * index[0], 1, q_len=NODES)), size)


def two_runs(size):
    """Each process has a run from the head and one from the tail, which it holds first."""
    runs = uneven(2 * size).runs
    return Layout(tuple(runs[2 * size - 1 - rank] + runs[rank] for rank in range(size)))


def nobody(size):
    """Process 0 has no nodes."""
    return Layout(((), *uneven(size - 1).runs))


def together(tensors):
    """The sums of tensors over all processes."""
    # what travels is memory, and autograd may give another order of axes on each process
    sums = [x.detach().clone(memory_format=torch.contiguous_format) for x in tensors]
    for x in sums:
        distributed.all_reduce(x)
    return sums


def close(got, wanted, bound=1e-12):
    torch.testing.assert_close(got, wanted, rtol=bound, atol=bound)


def loss_of(z):
    return (z - 0.3).square().sum() / NODES


def one_process(net, x, index, attr, types):
    """Output, loss and all gradients of one process."""
    leaves = [x.clone().requires_grad_(), attr.clone().requires_grad_(), *net.parameters()]
    z = net(leaves[0], index, leaves[1], types)
    loss = loss_of(z)
    return z.detach(), loss.detach(), torch.autograd.grad(loss, leaves)


def a_step(mesh, layout, options, as_labels):
    (index, types, attr, x), net = graph(), network(**options)
    z, loss, (grad_x, grad_attr, *grads) = one_process(net, x, index, attr, types)
    layout, rank = layout(mesh.size()), mesh.get_local_rank()
    part = NodePartition.cut(mesh, layout, index)
    own = layout.shard(x, rank, 0).requires_grad_()
    own_attr = attr[part.edge_ids].requires_grad_()
    own_types = types[part.edge_ids]
    edges = (part.labels(own_types, RELATIONS), own_attr) if as_labels else (part.edge_index, own_attr, own_types)
    mine = net(own, *edges, with_halo=part.with_halo)
    close(mine.detach(), layout.shard(z, rank, 0))
    my_loss = loss_of(mine)
    close(together([my_loss])[0], loss)
    got_x, got_attr, *got = torch.autograd.grad(my_loss, [own, own_attr, *net.parameters()])
    close(got_x, layout.shard(grad_x, rank, 0))
    close(got_attr, grad_attr[part.edge_ids])
    close(together(got), grads)


def own_edges_alone(mesh):
    """Each process gives its own edges, in any order; the whole is nowhere."""
    index, layout, rank = graph()[0], two_runs(mesh.size()), mesh.get_local_rank()
    mine = torch.isin(index[1], layout.positions(rank)).nonzero()[:, 0]
    mine = mine[torch.randperm(mine.shape[0], generator=torch.Generator().manual_seed(rank))]
    part = NodePartition(mesh, layout, index[:, mine])
    cut = NodePartition.cut(mesh, layout, index)
    assert part.edge_ids.tolist() == list(range(mine.shape[0]))
    assert cut.edge_ids.tolist() == sorted(mine.tolist())
    assert torch.equal(part.node_ids, cut.node_ids)
    assert torch.equal(part.node_ids[: part.num_own], layout.positions(rank))
    assert torch.equal(part.node_ids[part.edge_index[0]], index[0, mine])
    assert torch.equal(part.node_ids[part.edge_index[1]], index[1, mine])
    numbers = torch.arange(NODES)
    assert torch.equal(part.with_halo(layout.shard(numbers, rank, 0)), part.node_ids)
    assert repr(part) == (
        f"NodePartition(rank={rank}, processes={mesh.size()}, num_own={part.num_own}, num_halo={part.num_halo}, "
        f"edges={mine.shape[0]})"
    )


def bytes_sent(mesh):
    """What travels is each node that another process needs, once to each; in backward its gradient comes back."""
    index, _, _, x = graph()
    layout, rank, size = by_edges(mesh.size()), mesh.get_local_rank(), mesh.size()
    owner = {node: each for each in range(size) for node in layout.positions(each).tolist()}
    crossing = {(source, owner[target]) for source, target in index.T.tolist() if owner[source] != owner[target]}
    sends = sum(owner[source] == rank for source, _ in crossing)
    needs = sum(to == rank for _, to in crossing)
    with rg.distributed.count_bytes() as sent:
        part = NodePartition.cut(mesh, layout, index)
    assert (part.num_sent, part.num_halo) == (sends, needs)
    assert sent == {"gather": 0, "all_to_all": 8 * (needs + size - 1), "ring": 0}
    own = layout.shard(x, rank, 0).requires_grad_()
    with rg.distributed.count_bytes() as sent:
        z = part.with_halo(own)
    assert sent["all_to_all"] == 8 * WIDTH * sends
    with rg.distributed.count_bytes() as sent:
        z.sum().backward()
    assert sent["all_to_all"] == 8 * WIDTH * needs


def projected_first(mesh):
    """Keys and values may be exchanged in place of features, in attention without a layer."""
    (index, types, attr, x), layout, rank = graph(), two_runs(mesh.size()), mesh.get_local_rank()
    torch.manual_seed(3)
    tables = [torch.randn(RELATIONS, WIDTH // 2, dtype=F64, requires_grad=True) for _ in range(2)]
    maps = {"edge_key": torch.randn(WIDTH // 2, FEATURES, dtype=F64)}
    labels = rg.EdgeLabels(index, types, RELATIONS, q_len=NODES)
    heads = x.view(NODES, 2, -1).requires_grad_()
    z = rg.edge_attention(heads, 2 * heads, heads.sin(), labels, *tables, edge_attr=attr, **maps)
    wanted = torch.autograd.grad(loss_of(z), [heads, *tables])
    part = NodePartition.cut(mesh, layout, index)
    own = layout.shard(heads.detach(), rank, 0).requires_grad_()
    mine = rg.edge_attention(
        own, part.with_halo(2 * own), part.with_halo(own.sin()), part.labels(types[part.edge_ids], RELATIONS), *tables,
        edge_attr=attr[part.edge_ids], **maps,
    )  # fmt: skip
    close(mine, layout.shard(z, rank, 0))
    got, *grads = torch.autograd.grad(loss_of(mine), [own, *tables])
    close(got, layout.shard(wanted[0], rank, 0))
    close(together(grads), list(wanted[1:]))


def second_gradients(mesh):
    """Gradients of gradients cross borders too."""
    (index, _, _, x), layout, rank = graph(), two_runs(mesh.size()), mesh.get_local_rank()
    part = NodePartition.cut(mesh, layout, index)

    def second(own, sources, edges):
        loss = (sources[edges[0]].square() * own[edges[1]]).sum()
        (first,) = torch.autograd.grad(loss, own, create_graph=True)
        return torch.autograd.grad(first.pow(3).sum(), own)[0]

    leaf, own = x.clone().requires_grad_(), layout.shard(x, rank, 0).requires_grad_()
    close(second(own, part.with_halo(own), part.edge_index), layout.shard(second(leaf, leaf, index), rank, 0), 1e-11)


def with_ddp(mesh, layout):
    """DistributedDataParallel averages gradients: a loss that is P times as large gives their sum."""
    (index, types, attr, x), net = graph(), network()
    *_, (_, _, *grads) = one_process(net, x, index, attr, types)
    layout, rank = layout(mesh.size()), mesh.get_local_rank()
    part, ddp = NodePartition.cut(mesh, layout, index), DistributedDataParallel(net)
    labels = part.labels(types[part.edge_ids], RELATIONS)
    z = ddp(layout.shard(x, rank, 0), labels, attr[part.edge_ids], with_halo=part.with_halo)
    (mesh.size() * loss_of(z)).backward()
    close([parameter.grad for parameter in net.parameters()], list(grads))


def bad_arguments(mesh):
    """What one process gets wrong, in a graph and in features, all refuse."""
    size, rank, last = mesh.size(), mesh.get_local_rank(), mesh.get_local_rank() == mesh.size() - 1
    (index, _, _, x), layout = graph(), uneven(size)
    part = NodePartition.cut(mesh, layout, index)
    mine = torch.stack([part.node_ids[end] for end in part.edge_index])
    wrong, n = torch.tensor([[0], [int(layout.positions(0)[0])]]), layout.lengths[size - 1]
    own, whole = layout.shard(x, rank, 0), index.clone()
    whole[0, 4] = 77 if last else 1

    def made(edges, by=layout):
        return lambda: NodePartition(mesh, by, edges)

    def halo(one):
        return lambda: part.with_halo(one if last else own)

    for message, call in (
        ("^ValueError: layout must be the same on all proc", made(mine, layout if rank else two_runs(size))),
        ("layout must be the same on all processes", made(mine, uneven(size + last))),
        (f"layout must be for {size} processes.*{size + 1}$", made(mine, uneven(size + 1))),
        (f"layout must be a Layout, got str; on process {size - 1}", made(mine, "even" if last else layout)),
        ("of this process, got edge 0: 0 -> 0, and process 0 owns 0; on", made(wrong if last else mine)),
        (f"edge_index: every source must .*; on process {size - 1}$", made(mine + 20 * last)),
        ("edge_index: every source must .*; on process 0$", made(mine - 20 * (rank == 0))),
        ("TypeError: edge_index must be a Tensor", made(mine.tolist() if last else mine)),
        ("edge_index must hold numbers", made(mine.to("meta") if last else mine)),
        ("edge_index: every source must .*; on", lambda: NodePartition.cut(mesh, layout, whole)),
        (rf"row for each of the {n} nodes of this process, got shape \[{n - 1}, 6\]; on process", halo(own[1:])),
        ("TypeError: x must be a Tensor, got list: make it a tensor.*; on", halo(own.tolist())),
        (r"x must be the same .*float64 \[n, 6\], requires_grad=False on process 0", halo(own.float())),
        (r"x must be the same on all processes, .*\[n, 3\]", halo(own[:, :3])),
        ("x must be the same on all processes, .*requires_grad=True on", halo(own.clone().requires_grad_())),
        ("on process", halo(own.to("meta"))),
    ):
        text = caught(call)
        assert isinstance(text, str) and re.search(message, text.split("\n", 1)[0]), text
        texts = [None] * size
        distributed.all_gather_object(texts, text.split("\n", 1)[0])
        assert texts == [texts[0]] * size
    assert part.with_halo(own).shape == (part.num_own + part.num_halo, WIDTH)


def compiled(mesh):
    """Compiled code leaves the graph to talk to other processes, and comes back."""
    (index, types, attr, x), layout, rank = graph(), uneven(mesh.size()), mesh.get_local_rank()
    part, net = NodePartition.cut(mesh, layout, index), network()
    given = layout.shard(x, rank, 0), part.labels(types[part.edge_ids], RELATIONS), attr[part.edge_ids]
    wanted = net(*given, with_halo=part.with_halo)
    close(torch.compile(net, backend="eager")(*given, with_halo=part.with_halo), wanted)


MODELS = {
    "plain": {},
    "edges": {"impl": "edges"},
    "messages": {"aggr": "mean"},
    "self-loops": {"add_self_loops": True},
    "tied": {"tie_projections": ("query",), "tables": "tied"},
    "additive": {"score": "additive", "tables": ("key", "value", "bias")},
}
LAYOUTS = (two_runs, nobody, by_edges)
CASES = {
    "bad arguments": bad_arguments,
    **{
        name: partial(a_step, layout=LAYOUTS[at % 3], options=options, as_labels=name != "messages")
        for at, (name, options) in enumerate(MODELS.items())
    },
    "own edges alone": own_edges_alone,
    "bytes": bytes_sent,
    "projected first": projected_first,
    "second gradients": second_gradients,
    "DDP, nobody": partial(with_ddp, layout=nobody),
}


def all_cases(mesh):
    """What went wrong in each case, by name; None if nothing did."""
    cases = CASES | ({"compiled": compiled} if mesh.size() == 4 else {})
    for name, case in cases.items():
        yield name, caught(partial(case, mesh))
