"""One graph on several processes: camps of a network of agreement and disagreement, found by its edges.

Each person belongs to one of two camps. An edge says that two people agree or disagree. People who agree usually share
a camp, but one edge in ten is wrong. The camps of some people are known, and the model must find the camps of the
others. To do so it must follow edges and see their kinds: without the kinds, the graph is random. Every step trains on
the whole graph, so a larger graph needs more processes, not smaller batches. There are two models, each with its own
ways to split:

    --model edges    attention along edges (RelationConv)          --parallel nodes
    --model pairs    attention over all pairs, with the kind of    --parallel context-allgather, context-ring or
                     edge as label (RelationEncoder)               context-ulysses

    python examples/one_graph.py
    torchrun --nproc-per-node 2 examples/one_graph.py --parallel nodes
    torchrun --nproc-per-node 2 examples/one_graph.py --model pairs --parallel context-ring

All commands of one model print the same losses up to rounding. With ``nodes``, each process holds some people and the
edges into them; before each layer it fetches the features of the people at the other end of its edges. With the other
ways, each process holds some people, and attention sees all people.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from translation.processes import Processes, processes

import relgraph as rg

KINDS = rg.EdgeType(["agree", "disagree"])
"""Labels of edges only."""
PAIRS = rg.EdgeType(["agree", "disagree"], self_loop=True, attend="all", default="none")
"""Labels of all pairs."""
DEGREE, WRONG, KNOWN, TRAINED = 10, 0.1, 0.2, 0.5
WIDTH, HEADS, LAYERS = 32, 4, 3
TABLES, NO_EDGE = ("key", "value", "bias"), -4.0
NODES = "nodes"
METHODS = {f"context-{method}": method for method in ("allgather", "ring", "ulysses")}
MODES = {"edges": (NODES,), "pairs": tuple(METHODS)}
"""The ways to split each model."""


@dataclass
class Network:
    """People and what they think of each other.

    Attributes:
        graph: the people, with edges in both directions between any two whose opinion is known.
        x: ``[N, 3]``, one-hot: first camp, second camp, or not known.
        camp: ``[N]``, 0 or 1.
        trained: ``[N]``, whose camp training asks for; the test asks for all other unknown camps.
    """

    graph: rg.Graph
    x: Tensor
    camp: Tensor
    trained: Tensor

    @classmethod
    def draw(cls, people: int, seed: int) -> Network:
        """A random network, the same on every process."""
        draws = torch.Generator().manual_seed(seed)
        camp = torch.randint(2, (people,), generator=draws)
        one = torch.arange(people).repeat_interleave(DEGREE // 2)
        other = (one + torch.randint(1, people, one.shape, generator=draws)) % people
        wrong = torch.rand(one.shape, generator=draws) < WRONG
        disagree = ((camp[one] != camp[other]) ^ wrong).long()
        edges = torch.stack([torch.cat([one, other]), torch.cat([other, one])])
        # keep the first of several edges between the same people
        place = edges[0] * people + edges[1]
        order = place.argsort(stable=True)
        first = order[torch.cat([torch.ones(1).bool(), place[order].diff() != 0])]
        graph = rg.Graph(edges[:, first], people, edge_type=disagree.repeat(2)[first])
        group = torch.rand(people, generator=draws)
        known = group < KNOWN
        x = nn.functional.one_hot(torch.where(known, camp, 2), 3).to(torch.get_default_dtype())
        return cls(graph, x, camp, ~known & (group < KNOWN + TRAINED))

    @property
    def tested(self) -> Tensor:
        """``[N]``, whose camp the test asks for."""
        return (self.x[:, 2] == 1) & ~self.trained


class AlongEdges(nn.Module):
    """Layers of attention along edges."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 2)
        layers = [rg.pyg.RelationConv(WIDTH, WIDTH // HEADS, HEADS, num_relations=2) for _ in range(LAYERS)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, labels: rg.Labels, with_halo: Callable[[Tensor], Tensor]) -> Tensor:
        """``[n, 2]``, scores of both camps for the people of this process."""
        x = self.first(x)
        for layer in self.layers:
            x = x + layer((with_halo(x), x), labels).relu()
        return self.last(x)


class OverPairs(nn.Module):
    """Layers of attention over all pairs, whose labels are the kinds of edges."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 2)
        layer = rg.RelationEncoderLayer(WIDTH, HEADS, 2 * WIDTH, 0.0, labeler=PAIRS, tables=TABLES)
        self.layers = rg.RelationEncoder(layer, LAYERS)
        with torch.no_grad():  # so that the few edges stand out among all pairs from the beginning
            for layer in self.layers.layers:
                layer.self_attn.tables.bias.rows[PAIRS.names.index("none")] = NO_EDGE

    def forward(self, x: Tensor, labels: rg.Labels, _: Callable[[Tensor], Tensor]) -> Tensor:
        """As in :class:`AlongEdges`."""
        return self.last(self.layers(self.first(x)[None], labels=labels)[0])


@dataclass
class Part:
    """What a process works on; a single process works on everything.

    Attributes:
        rows: ``[n]``, its people.
        labels: labels of the edges into these people, or of all pairs.
        with_halo: adds the features of people at the other end of its edges that other processes hold.
        region: the context manager around forward and backward.
    """

    rows: Tensor
    labels: rg.Labels
    with_halo: Callable[[Tensor], Tensor]
    region: Callable[[], AbstractContextManager[Any]]


def whole(network: Network, model: str) -> Part:
    """The graph on one process."""
    labels = (KINDS if model == "edges" else PAIRS)(network.graph)
    return Part(torch.arange(network.graph.num_nodes), labels, lambda x: x, nullcontext)


def cut(network: Network, mode: str, mine: Processes) -> Part:
    """The part of this process; all parts cost about the same."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (mine.world,))
    labels = (KINDS if mode == NODES else PAIRS)(network.graph)
    layout = rg.distributed.Layout.by_cost(rg.distributed.row_costs(labels), mine.world)
    rows = layout.positions(mine.rank)
    if mode != NODES:
        # every process keeps all labels; attention takes the rows that it needs
        region = partial(rg.distributed.context_parallel, mesh, method=METHODS[mode], layout=layout)
        return Part(rows, labels, lambda x: x, region)
    graph = network.graph
    partition = rg.distributed.NodePartition.cut(mesh, layout, graph.edge_index)
    own = partition.labels(graph.edge_type[partition.edge_ids], KINDS.num_labels)
    return Part(rows, own, partition.with_halo, nullcontext)


def train(network: Network, part: Part, model: nn.Module, steps: int, mine: Processes) -> list[float]:
    """Train on the whole graph in each step; return each step's loss, the mean over all training people."""
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    asked = network.trained[part.rows]
    count, losses = int(network.trained.sum()), []
    for _ in range(steps):
        optimizer.zero_grad()
        with part.region():
            scores = model(network.x[part.rows], part.labels, part.with_halo)
            # dividing by the count of all processes makes losses and gradients add up to those of one process
            loss = cross_entropy(scores[asked], network.camp[part.rows][asked], reduction="sum") / count
            loss.backward()
        if mine.world > 1:
            for parameter in model.parameters():
                torch.distributed.all_reduce(parameter.grad)
        optimizer.step()
        losses += mine.sum(loss.item())
    return losses


@torch.no_grad()
def accuracy(network: Network, part: Part, model: nn.Module, mine: Processes) -> float:
    """The share of right answers for people with unknown camps outside training."""
    with part.region():
        scores = model(network.x[part.rows], part.labels, part.with_halo)
    tested = network.tested[part.rows]
    right = (scores.argmax(1) == network.camp[part.rows])[tested].sum()
    share, count = mine.sum(float(right), float(tested.sum()))
    return share / count


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Find the two camps of a network, with one graph on several processes."
    )
    parser.add_argument("--model", choices=MODES, default="edges", help="attend along edges or over all pairs (edges)")
    modes = [mode for of_model in MODES.values() for mode in of_model]
    parser.add_argument("--parallel", choices=modes, help="how the processes of torchrun split the graph")
    parser.add_argument("--people", type=int, default=500, help="number of people (500)")
    parser.add_argument("--steps", type=int, default=60, help="training steps (60)")
    parser.add_argument("--seed", type=int, default=0, help="seed of network and model (0)")
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace, mine: Processes) -> list[float]:
    """Train as the command line asks, print the losses and return them.

    Raises:
        ValueError: several processes without a way to split the model, or a way to split with a single process.
    """
    mode, model = arguments.parallel, arguments.model
    if mine.world > 1 and mode not in MODES[model]:
        raise ValueError(f"--parallel must be one of {list(MODES[model])} for --model {model}, got {mode}")
    if mine.world == 1 and mode is not None:
        raise ValueError(f"--parallel needs several processes, got one and {mode!r}: start them with torchrun")
    network = Network.draw(arguments.people, arguments.seed)
    part = whole(network, model) if mine.world == 1 else cut(network, mode, mine)
    torch.manual_seed(arguments.seed)
    trained = AlongEdges() if model == "edges" else OverPairs()
    losses = train(network, part, trained, arguments.steps, mine)
    right = accuracy(network, part, trained, mine)
    if mine.leads:
        for step in range(0, arguments.steps, max(1, arguments.steps // 6)):
            print(f"step {step + 1:>4}: loss {losses[step]:.6f}")
        print(f"step {arguments.steps:>4}: loss {losses[-1]:.6f}, {100 * right:.1f} % of unknown camps right")
    return losses


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    try:
        with processes("cpu") as mine:
            run(arguments, mine)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
