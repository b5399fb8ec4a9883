"""The sides of a karate club's members: distances, kinds of friendship, PyG's layers, and a vote.

- PyG's ``GCNConv`` and ``TransformerConv``: friends; the second also reads the kind of each friendship;
- ``no labels``: all members, without telling them apart;
- ``distances``: all members; each pair is labeled with the length of its shortest path;
- ``kinds | distances``: all members; friends are labeled with the kind of friendship, others with the shortest path.

The last line is a rule that does not learn: each known member votes for its side.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import torch
from example_options import Options, positive
from example_runs import by_row, by_seed, lead, percent
from karate_club import CLUB, DISTANCES, HEADS, LABELS, SIDES, UNKNOWN, WIDTH, Members, choose, shown, train
from karate_club import with_distances as distances
from torch import Tensor
from torch.nn.functional import one_hot
from torch_geometric.nn import GCNConv, TransformerConv

import relgraph as rg
from experiments import Experiment, Work
from relgraph.interop.networkx import from_networkx

OFTEN = 3  # ways of meeting, of eight

FRIENDS = from_networkx(
    nx.karate_club_graph(),
    edge_type=lambda _, __, edge: "often" if edge["weight"] >= OFTEN else "seldom",
    types=["seldom", "often"],
)
KINDS = rg.EdgeType(FRIENDS.types, attend="all") | DISTANCES


ROWS = {
    "PyG GCNConv": lambda: Members(lambda: GCNConv(WIDTH, WIDTH), edge_index=CLUB.graph.edge_index),
    "PyG TransformerConv": lambda: Members(
        lambda: TransformerConv(WIDTH, WIDTH // HEADS, HEADS, edge_dim=2),
        edge_index=FRIENDS.graph.edge_index,
        edge_attr=one_hot(FRIENDS.graph.edge_type, 2).float(),
    ),
    "no labels": lambda: Members(lambda: rg.RelationAttention(WIDTH, HEADS, tables=())),
    "distances": lambda: Members(distances, labels=LABELS),
    "kinds | distances": lambda: Members(
        lambda: rg.RelationAttention(WIDTH, HEADS, labeler=KINDS, tables=("key", "value", "bias")),
        labels=KINDS(FRIENDS.graph),
    ),
}


def share_right(predicted: Tensor, known: Tensor) -> float:
    """The share of the other members whose predicted side is right."""
    asked = torch.ones(len(SIDES), dtype=torch.bool)
    asked[known] = False
    return (predicted == SIDES)[asked].double().mean().item()


def vote(known: Tensor) -> Tensor:
    """The rule that does not learn: each known member votes for its side, four times less per step of distance."""
    lengths = dict(nx.all_pairs_shortest_path_length(nx.karate_club_graph()))
    weights = torch.tensor([[4.0 ** -lengths[one][other] for other in known.tolist()] for one in range(len(SIDES))])
    return (weights @ one_hot(SIDES[known], UNKNOWN).float()).argmax(-1)


@dataclass
class Run:
    """One row with one seed; ``voted`` is the share that the rule gets right with the same known members."""

    variant: str
    seed: int
    right: float
    voted: float
    parameters: int
    seconds: float


def report(runs: Sequence[Run]) -> str:
    """The table that is printed; its last column is how far a row is ahead of GCNConv on the same known members."""
    seeds, first = by_seed(runs, "right"), next(iter(ROWS))
    lines = [f"{'row':<21}{'right sides':>15}{'parameters':>12}   ahead of {first}"]
    for name, mine in by_row(runs).items():
        ahead = lead(seeds[name], seeds[first]) if name != first and first in seeds else ""
        right = percent([*seeds[name].values()])
        lines.append(f"{name:<21}{right:>15}{mine[0].parameters:>12,}   {ahead}".rstrip())
    votes = {run.seed: run.voted for run in runs}
    ahead = lead(votes, seeds[first]) if first in seeds else ""
    lines.append(f"{'nearest members vote':<21}{percent(list(votes.values())):>15}{'–':>12}   {ahead}".rstrip())
    return "\n".join(lines)


def check(options: Options, arguments: Namespace) -> None:
    if not 2 <= arguments.known < len(SIDES):
        options.error(f"--known must be 2 to {len(SIDES) - 1}, got {arguments.known}")


def begin(arguments: Namespace) -> Work:
    def run(name: str, seed: int) -> tuple[Run, Members]:
        known = choose(seed, arguments.known)
        torch.manual_seed(seed)
        model, start = ROWS[name](), time.process_time()
        train(model, known, arguments.steps)
        seconds = time.process_time() - start
        with torch.no_grad():
            right = share_right(model(shown(known)).argmax(-1), known)
        size = sum(parameter.numel() for parameter in model.parameters())
        return Run(name, seed, right, share_right(vote(known), known), size, seconds), model.eval()

    seconds = len(arguments.rows) * len(arguments.seeds) * arguments.steps * 0.005
    return Work({"steps": arguments.steps, "known": arguments.known}, seconds, run)


EXPERIMENT = Experiment(
    Run, [*ROWS], "three seeds, about a quarter of a minute", {"seeds": (20, 3), "steps": (150, 150)}, begin,
    tell=lambda run: percent([run.right]), report=report, check=check,
    options=lambda options: options.add_argument("--known", type=positive, default=10, help="known members (10)"),
)  # fmt: skip
