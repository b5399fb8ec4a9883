"""What processes of a split graph hold against one process, case by case; ``test_nodes.py`` starts them."""

from __future__ import annotations

import gzip
import json
import os
import re
import traceback
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader, NodeLoader
from torch_geometric.sampler import BaseSampler, SamplerOutput
from torch_geometric.utils import k_hop_subgraph

import relgraph as rg

Layout, NodePartition = rg.distributed.Layout, rg.distributed.NodePartition
NODES, RELATIONS, WIDTH, FEATURES = 20, 3, 6, 2
DATA = Path(os.environ.get("RELGRAPH_DATA", Path(__file__).parents[3] / "shared" / "data"))
F64 = torch.float64


class Network(nn.Module):
    """Two layers over one graph, split or not."""

    def __init__(self, width=WIDTH, **options):
        super().__init__()
        options = {"num_relations": RELATIONS, "edge_dim": FEATURES, **options}
        if options.get("score") == "additive":
            options["score"] = rg.score.Additive.learned(2, 4)
        self.first = rg.pyg.RelationConv(width, 4, heads=2, **options)
        self.second = rg.pyg.RelationConv(8, 4, heads=2, concat=False, beta=True, **options)

    def forward(self, x, edges, edge_attr=None, edge_type=None, with_halo=None):
        for layer in (self.first, self.second):
            nodes = x if with_halo is None else (with_halo(x), x)
            x = layer(nodes, edges, edge_type, edge_attr).tanh()
        return x


def graph(nodes=NODES, edges=90):
    """Edges with self-loops, parallel edges and two nodes without incoming edges; their relations and features."""
    made = torch.Generator().manual_seed(0)
    index = torch.randint(nodes, (2, edges), generator=made)
    index = index[:, (index[1] != 3) & (index[1] != nodes - 1)]
    index = torch.cat([index, index[:, :7], torch.tensor([[5, 6], [5, 6]])], 1)
    types = torch.randint(-1, RELATIONS, index.shape[1:], generator=made)
    attr = torch.randn(index.shape[1], FEATURES, generator=made, dtype=F64)
    return index, types, attr, torch.randn(nodes, WIDTH, generator=made, dtype=F64)


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


def loss_of(z, nodes=NODES):
    return (z - 0.3).square().sum() / nodes


def one_process(net, x, index, attr, types):
    """Output, loss and all gradients of one process."""
    leaves = [x.clone().requires_grad_(), attr.clone().requires_grad_(), *net.parameters()]
    z = net(leaves[0], index, leaves[1], types)
    loss = loss_of(z, x.shape[0])
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


def ten_steps(mesh):
    """Ten steps of Adam with gradients summed over the processes end at the parameters of one process."""
    index, types, attr, x = graph()
    layout, rank = by_edges(mesh.size()), mesh.get_local_rank()
    part, alone, split = NodePartition.cut(mesh, layout, index), network(), network()
    labels, own = part.labels(types[part.edge_ids], RELATIONS), layout.shard(x, rank, 0)
    own_attr = attr[part.edge_ids]
    steps = [torch.optim.Adam(net.parameters(), 0.02) for net in (alone, split)]
    for _ in range(10):
        loss = loss_of(alone(x, index, attr, types))
        my_loss = loss_of(split(own, labels, own_attr, with_halo=part.with_halo))
        for step, each in zip(steps, (loss, my_loss), strict=True):
            step.zero_grad()
            each.backward()
        for parameter in split.parameters():
            distributed.all_reduce(parameter.grad)
        for step in steps:
            step.step()
        close(together([my_loss.detach()])[0], loss.detach(), 1e-10)
    close(list(split.parameters()), list(alone.parameters()), 1e-10)


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


def batches_with_ddp(mesh):
    """Each process takes other graphs of PyG's DataLoader; together their gradients are those of one batch of all."""
    graphs = []
    for seed in range(8):
        made = torch.Generator().manual_seed(seed)
        index = torch.randint(5 + seed, (2, 12), generator=made)
        types = torch.randint(RELATIONS, (12,), generator=made)
        attr = torch.randn(12, FEATURES, generator=made, dtype=F64)
        x = torch.randn(5 + seed, WIDTH, generator=made, dtype=F64)
        graphs.append(Data(x=x, edge_index=index, edge_type=types, edge_attr=attr))
    nodes, net = sum(data.num_nodes for data in graphs), network()
    (whole,) = DataLoader(graphs, batch_size=8)
    *_, (_, _, *grads) = one_process(net, whole.x, whole.edge_index, whole.edge_attr, whole.edge_type)
    ddp = DistributedDataParallel(net)
    sampler = DistributedSampler(graphs, mesh.size(), mesh.get_local_rank(), shuffle=False)
    for data in DataLoader(graphs, batch_size=8 // mesh.size(), sampler=sampler):
        z = ddp(data.x, data.edge_index, data.edge_attr, data.edge_type)
        (mesh.size() * loss_of(z, nodes)).backward()
    close([parameter.grad for parameter in net.parameters()], list(grads))


class AllNeighbors(BaseSampler):
    """All nodes and edges within some steps of the seeds, in plain torch: PyG's sampler needs pyg-lib."""

    def __init__(self, index, steps):
        self.index, self.steps = index, steps

    def sample_from_edges(self, index, **kwargs):
        raise NotImplementedError

    def sample_from_nodes(self, index, **kwargs):
        nodes, edges, _, mask = k_hop_subgraph(index.node, self.steps, self.index, relabel_nodes=True)
        rest = nodes[~torch.isin(nodes, index.node)]
        ordered = torch.cat([index.node, rest])  # seeds come first, as a NodeLoader's user expects
        place = torch.empty_like(nodes).scatter(0, torch.searchsorted(nodes, ordered), torch.arange(nodes.shape[0]))
        row, col = place[edges]
        return SamplerOutput(node=ordered, row=row, col=col, edge=mask.nonzero()[:, 0], metadata=(index.input_id, None))


def neighbors_with_ddp(mesh):
    """Each process takes other seeds of PyG's NodeLoader; with all their neighbours, the step is that of the graph."""
    (index, types, attr, x), net = graph(), network()
    *_, (_, _, *grads) = one_process(net, x, index, attr, types)
    seeds = torch.arange(NODES).chunk(mesh.size())[mesh.get_local_rank()]
    data = Data(x=x, edge_index=index, edge_type=types, edge_attr=attr)
    loader = NodeLoader(data, AllNeighbors(index, 2), input_nodes=seeds, batch_size=seeds.shape[0])
    ddp = DistributedDataParallel(net)
    for batch in loader:
        z = ddp(batch.x, batch.edge_index, batch.edge_attr, batch.edge_type)
        (mesh.size() * loss_of(z[: batch.batch_size])).backward()
    close([parameter.grad for parameter in net.parameters()], list(grads))


def triples(path):
    """The edges of a knowledge graph, (head, tail) by column, their relations, and how many of both there are."""
    text = gzip.decompress(path.read_bytes()).decode()
    heads, relations, tails = zip(*(line.split("\t")[:3] for line in text.splitlines()), strict=True)
    nodes = {name: number for number, name in enumerate(dict.fromkeys(heads + tails))}
    kinds = {name: number for number, name in enumerate(dict.fromkeys(relations))}
    index = torch.tensor([[nodes[name] for name in heads], [nodes[name] for name in tails]])
    return index, torch.tensor([kinds[name] for name in relations]), len(nodes), len(kinds)


def a_real_graph(mesh, path):
    index, types, nodes, relations = triples(path)
    net = network(num_relations=relations, edge_dim=None, width=4)
    x = torch.randn(nodes, 4, dtype=F64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    z = net(x, index, None, types)
    grad_x, *grads = torch.autograd.grad(loss_of(z, nodes), [x, *net.parameters()])
    edges = rg.EdgeLabels(index, types, relations, q_len=nodes)
    layout, rank = Layout.by_cost(rg.distributed.row_costs(edges) + 1, mesh.size()), mesh.get_local_rank()
    part = NodePartition.cut(mesh, layout, index)
    own = layout.shard(x.detach(), rank, 0).requires_grad_()
    mine = net(own, part.labels(types[part.edge_ids], relations), with_halo=part.with_halo)
    close(mine, layout.shard(z, rank, 0))
    got, *mine = torch.autograd.grad(loss_of(mine, nodes), [own, *net.parameters()])
    close(got, layout.shard(grad_x, rank, 0))
    close(together(mine), grads)


def refused(mesh, call, message):
    """Every process raises the same error, at once."""
    try:
        call()
        mine = None
    except (TypeError, ValueError) as error:
        mine = f"{type(error).__name__}: {error}"
    texts = [None] * mesh.size()
    distributed.all_gather_object(texts, mine)
    assert texts == [texts[0]] * mesh.size()
    assert texts[0] is not None and re.search(message, texts[0]), texts[0]


def bad_graphs(mesh):
    size, rank, last = mesh.size(), mesh.get_local_rank(), mesh.get_local_rank() == mesh.size() - 1
    index, layout = graph()[0], uneven(size)
    own = NodePartition.cut(mesh, layout, index)
    mine = torch.stack([own.node_ids[end] for end in own.edge_index])
    wrong = torch.tensor([[0], [int(layout.positions(0)[0])]])

    def given(edges, by=layout):
        return lambda: NodePartition(mesh, by, edges)

    refused(mesh, given(mine, layout if rank else two_runs(size)), r"^ValueError: layout must be the same on all proc")
    refused(mesh, given(mine, uneven(size + last)), "layout must be the same on all processes")
    refused(mesh, given(mine, uneven(size + 1)), f"layout must be for {size} processes.*{size + 1}$")
    refused(
        mesh,
        given(mine, "even" if last else layout),
        f"TypeError: layout must be a Layout, got str; on process {size - 1}",
    )
    refused(
        mesh, given(wrong if last else mine), r"nodes of this process, got edge 0: 0 -> 0, and process 0 owns 0; on"
    )
    refused(mesh, given(mine + 20 * last), f"edge_index: every source must .*; on process {size - 1}$")
    refused(mesh, given(mine - 20 * (rank == 0)), "edge_index: every source must .*; on process 0$")
    refused(mesh, given(mine.double() if last else mine), "edge_index must .*float64; on process")
    refused(mesh, given(mine[:1] if last else mine), r"edge_index must have shape \[2, E\], got \[1, ")
    refused(mesh, given(mine.tolist() if last else mine), "TypeError: edge_index must be a Tensor")
    refused(mesh, given(mine.to("meta") if last else mine), "edge_index must hold numbers")
    whole = index.clone()
    whole[0, 4] = 77 if last else 1
    refused(mesh, lambda: NodePartition.cut(mesh, layout, whole), "edge_index: every source must .*; on process")


def bad_features(mesh):
    rank, last = mesh.get_local_rank(), mesh.get_local_rank() == mesh.size() - 1
    (index, _, _, x), layout = graph(), uneven(mesh.size())
    part = NodePartition.cut(mesh, layout, index)
    own = layout.shard(x, rank, 0)
    n = layout.lengths[mesh.size() - 1]

    def given(one):
        return lambda: part.with_halo(one if last else own)

    refused(
        mesh,
        given(own[1:]),
        rf"x must have a row for each of the {n} nodes of this process, got shape \[{n - 1}, 6\]; on",
    )
    refused(mesh, given(own.sum()), r"x must have a row .* got shape \[\]; on process")
    refused(mesh, given(own.tolist()), "TypeError: x must be a Tensor, got list: make it a tensor.*; on")
    refused(
        mesh,
        given(own.float()),
        r"^ValueError: x must be the same .*float64 \[n, 6\], requires_grad=False on process 0",
    )
    refused(mesh, given(own[:, :3]), r"x must be the same on all processes, .*\[n, 3\]")
    refused(
        mesh,
        given(own.clone().requires_grad_()),
        "x must be the same on all processes, .*requires_grad=True on process",
    )
    refused(mesh, given(own.to("meta")), "on process")
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
    "tied": {"tie_projections": ("query",), "tie_tables": True, "per_head": False},
    "additive": {"score": "additive", "tables": ("key", "value", "bias")},
}
CASES = {
    "bad graphs": bad_graphs,
    "bad features": bad_features,
    **{f"{name}, {layout.__name__}": partial(a_step, layout=layout, options=options, as_labels=name != "messages")
       for name, options in MODELS.items() for layout in (two_runs, nobody)},
    "plain, by_edges": partial(a_step, layout=by_edges, options={}, as_labels=True),
    "edge_index, uneven": partial(a_step, layout=uneven, options={}, as_labels=False),
    "own edges alone": own_edges_alone,
    "ten steps": ten_steps,
    "bytes": bytes_sent,
    "projected first": projected_first,
    "second gradients": second_gradients,
    "DDP": partial(with_ddp, layout=by_edges),
    "DDP, nobody": partial(with_ddp, layout=nobody),
    "DDP, batches": batches_with_ddp,
    "DDP, neighbours": neighbors_with_ddp,
}  # fmt: skip
REAL = {2: DATA / "kg-small" / "umls" / "train.txt.gz", 4: DATA / "kg-wn18rr" / "train.txt.gz"}


def of(size):
    """The cases that a world of this size runs."""
    cases = dict(CASES)
    if REAL[size].exists():
        cases["a real graph"] = partial(a_real_graph, path=REAL[size])
    if size == 4:
        cases["compiled"] = compiled
    return cases


def one_of_many(rank, size, path):
    distributed.init_process_group(
        "gloo", init_method=f"file://{path}/store", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    mesh, outcomes = init_device_mesh("cpu", (size,)), {}
    for name, case in of(size).items():
        try:
            case(mesh)
            outcomes[name] = ""
        except Exception:
            outcomes[name] = traceback.format_exc()
            break  # the others may wait for this process: what they say to each other no longer fits
    Path(path, f"{rank}.json").write_text(json.dumps(outcomes))
    distributed.destroy_process_group()
