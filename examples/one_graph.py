"""One graph on several processes: camps of a network of agreement and disagreement, found by its edges.

Everybody belongs to one of two camps. An edge says that two people agree or disagree; most who agree share a camp, but
one edge in ten is wrong. Of some people the camp is known. A model must name the camp of the others, so it must follow
edges and their kinds: who does not see kinds sees a random graph. Every step trains on the whole graph, so that a
larger graph needs more processes, not smaller batches. Two models, and what each can split:

    --model edges    attention along edges (RelationConv)          --parallel nodes
    --model pairs    attention over all pairs, with the kind of    --parallel context-allgather, context-ring or
                     edge as label (RelationEncoder)               context-ulysses

    python examples/one_graph.py
    torchrun --nproc-per-node 2 examples/one_graph.py --parallel nodes
    torchrun --nproc-per-node 2 examples/one_graph.py --model pairs --parallel context-ring

All commands of a model print the same losses up to rounding. With ``nodes`` each process holds some people and the
edges into them, and gets the features of those at the other end of its edges before each layer. With the others it
holds some people, and attention sees all of them.
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
"""Labels of edges alone."""
PAIRS = rg.EdgeType(["agree", "disagree"], self_loop=True, default="none")
"""Labels of all pairs."""
DEGREE, WRONG, KNOWN, TRAINED = 10, 0.1, 0.2, 0.5
WIDTH, HEADS, LAYERS = 32, 4, 3
TABLES, NO_EDGE = ("key", "value", "bias"), -4.0
NODES = "nodes"
METHODS = {f"context-{method}": method for method in ("allgather", "ring", "ulysses")}
MODES = {"edges": (NODES,), "pairs": tuple(METHODS)}
"""How each model can be split."""


@dataclass
class Network:
    """People and what is between them.

    Attributes:
        graph: the people, with an edge in both directions between two of whom something is known.
        x: ``[N, 3]``, one-hot: in the first camp, in the second, or not known.
        camp: ``[N]``, 0 or 1.
        trained: ``[N]``, of whom the camp is asked in training; in the test it is asked of all other unknown ones.
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
        # of two edges between the same people the first one counts
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
        """``[N]``, of whom the camp is asked in the test."""
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
        layer = rg.RelationEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, 0.0, num_labels=PAIRS.num_labels, names=PAIRS.names, tables=TABLES
        )
        tables: Any = layer.self_attn.tables
        with torch.no_grad():  # so that the few edges are seen among all pairs from the beginning
            tables.bias.rows[PAIRS.names.index("none")] = NO_EDGE
        self.layers = rg.RelationEncoder(layer, LAYERS)

    def forward(self, x: Tensor, labels: rg.Labels, _: Callable[[Tensor], Tensor]) -> Tensor:
        """As of :class:`AlongEdges`."""
        return self.last(self.layers(self.first(x)[None], labels=labels)[0])


@dataclass
class Part:
    """What a process works on; on one process it is the whole.

    Attributes:
        rows: ``[n]``, its people.
        labels: of the edges into them, or of all pairs.
        with_halo: adds the features of people at the other end of its edges, whom other processes hold.
        region: what forward and backward stand in.
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
    """The part of this process, so that all have about as much work."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (mine.world,))
    labels = (KINDS if mode == NODES else PAIRS)(network.graph)
    layout = rg.distributed.Layout.by_cost(rg.distributed.row_costs(labels), mine.world)
    rows = layout.positions(mine.rank)
    if mode != NODES:
        # the labels stay whole: they are cut where they are used
        region = partial(rg.distributed.context_parallel, mesh, method=METHODS[mode], layout=layout)
        return Part(rows, labels, lambda x: x, region)
    graph = network.graph
    partition = rg.distributed.NodePartition.cut(mesh, layout, graph.edge_index)
    own = partition.labels(graph.edge_type[partition.edge_ids], KINDS.num_labels)
    return Part(rows, own, partition.with_halo, nullcontext)


def train(network: Network, part: Part, model: nn.Module, steps: int, mine: Processes) -> list[float]:
    """Train on the whole graph in each step; the loss of every step, the mean over all people that are asked about."""
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    asked = network.trained[part.rows]
    count, losses = int(network.trained.sum()), []
    for _ in range(steps):
        optimizer.zero_grad()
        with part.region():
            scores = model(network.x[part.rows], part.labels, part.with_halo)
            # this process's part of the mean: losses and gradients of all processes add up to those of one
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
    """The share of people with an unknown camp, not trained on, whose camp is named."""
    with part.region():
        scores = model(network.x[part.rows], part.labels, part.with_halo)
    tested = network.tested[part.rows]
    right = (scores.argmax(1) == network.camp[part.rows])[tested].sum()
    share, count = mine.sum(float(right), float(tested.sum()))
    return share / count


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Camps of a network, found by one graph on several processes.")
    parser.add_argument("--model", choices=MODES, default="edges", help="along edges or over all pairs (edges)")
    modes = [mode for of_model in MODES.values() for mode in of_model]
    parser.add_argument("--parallel", choices=modes, help="how the processes of torchrun split the graph")
    parser.add_argument("--people", type=int, default=500, help="how many there are (500)")
    parser.add_argument("--steps", type=int, default=60, help="of training (60)")
    parser.add_argument("--seed", type=int, default=0, help="of network and model (0)")
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace, mine: Processes) -> list[float]:
    """Train as asked for, and print; the losses.

    Raises:
        ValueError: processes without a way to split the model, or the other way round.
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
