"""Kinship: what each table can learn
===================================

A game after the eight-section systems of Central Australia, in which ego's section settles the sections of all
relatives: here father is a flip of a square, mother a quarter turn, and spouse follows from them. What somebody is to
ego is the product of the links on the way from ego, in their order (father's mother is not mother's father). Random
families are grown one relative at a time, with one fact (an edge) each, so that one chain of links leads from ego to
everybody. A model must name the kin class, one of eight, of a person some links away. It trains on chains of 2 to 4
links and is tested on chains of 2 to 10 in other families. One layer with edges-only attention is applied once a link
and twice more, its weights shared.

All persons have the same input; ego is marked by the label of an edge to itself. Labels alone tell persons apart:

- with a^V, attention carries labels into the values, and a kin class can be passed on from person to person;
- with a^K alone, nothing can be learned: where all values are equal, so is every mean of them, whatever the weights.
  All persons leave each layer with one vector, as they came, and get one answer. ``none`` does the same.

.. code-block:: sh

    python examples/kinship.py            # all rows with three seeds, about six minutes on one CPU core
    python examples/kinship.py --quick    # one seed, less than a minute

Percent right by links, three seeds, mean ± standard deviation, as the first command printed:

.. code-block:: text

    tables              2–4            5            6            7            8            9           10         2–10
    both        100.0 ± 0.0   99.4 ± 0.8   98.1 ± 0.8   97.5 ± 1.0   93.6 ± 2.9   89.7 ± 5.2   89.6 ± 3.9   96.4 ± 1.4
    a^V alone   100.0 ± 0.1   97.3 ± 1.7   93.3 ± 3.2   83.0 ± 5.4   83.2 ± 4.3   71.4 ± 7.2   74.1 ± 4.5   89.1 ± 2.9
    a^K alone    16.6 ± 0.0   14.2 ± 0.0   18.6 ± 0.0   11.6 ± 0.0   13.6 ± 0.0   11.1 ± 0.0   16.6 ± 0.0   15.1 ± 0.0
    none         16.6 ± 0.0   14.2 ± 0.0   18.6 ± 0.0   11.6 ± 0.0   13.6 ± 0.0   11.1 ± 0.0   16.6 ± 0.0   15.1 ± 0.0

The last two rows tie exactly: both always give one answer. On trained lengths ``both`` and ``a^V alone`` tie too.
How to train (quiet steps, asking from one step later, rate, width) was settled with the row ``both`` and one seed,
looking at chains of up to 10 links in families other than the tested ones: the long columns were unseen by the models,
but not by whoever chose. No other row was tuned.

**The short mode**, which made the output and the pictures below, plays the same game with fewer and smaller batches and
fewer waiting steps. It learns most of the trained lengths; longer chains need the long mode, and by one seed ``both``
and ``a^V alone`` cannot be ranked.

It writes ``results.json``, models and pictures to ``kinship-out/`` (``--quick``: ``kinship-out/quick/``); after Ctrl-C
the same command goes on.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean

import torch
from example_runs import INTERRUPTED, Runs, announce, percent, picture, positive, train, until_stopped
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import relgraph as rg

# %%
# The task
# --------
#
# A kin class is a symmetry of the square: some quarter turns, and perhaps a flip. There are eight, and composing two of
# them gives a third, which depends on their order.

Section = tuple[int, int]  # quarter turns of a square, and whether it is flipped before

LINKS: dict[str, Section] = {"father": (0, 1), "mother": (1, 0), "spouse": (3, 1)}
CLASSES = 8


def compose(a: Section, b: Section) -> Section:
    """First the link ``a``, then ``b``: after a flip turns go the other way."""
    return (a[0] + (-b[0] if a[1] else b[0])) % 4, a[1] ^ b[1]


def inverse(a: Section) -> Section:
    """The way back; flips undo themselves."""
    return a if a[1] else (-a[0] % 4, 0)


# %%
# A family grows from ego, one relative at a time, and each new relative comes with one fact: a relative of somebody who
# is there already, or that person's child.


@dataclass
class Family:
    """Persons in the order in which they were added; person 0 is ego.

    Attributes:
        male: of each person.
        section: of each person, ego's being (0, 0).
        away: how many links each person is from ego.
        facts: ``(key, query, link)``: the key is the query's father, mother or spouse.
        taken: ``(person, link)``: whose father, mother or spouse is known.
    """

    male: list[bool]
    section: list[Section] = field(default_factory=lambda: [(0, 0)])
    away: list[int] = field(default_factory=lambda: [0])
    facts: list[tuple[int, int, str]] = field(default_factory=list)
    taken: set[tuple[int, str]] = field(default_factory=set)

    @classmethod
    def grow(cls, links: int, rng: random.Random) -> Family:
        """A random family with a person so many links away from ego, and others here and there."""
        family, person = cls([rng.random() < 0.5]), 0
        for _ in range(links):
            person = family.add(person, rng)
        for _ in range(2 * links + 4):
            family.add(rng.randrange(len(family.male)), rng)
        return family

    def add(self, person: int, rng: random.Random) -> int:
        """A new relative: a child, or a father, mother or spouse who is not known yet."""
        free = [link for link in LINKS if (person, link) not in self.taken]
        link = rng.choice([*free, "child", "child"])
        new, male = len(self.male), self.male[person]
        if link == "child":
            parent = "father" if male else "mother"
            self.facts.append((person, new, parent))
            self.taken.add((new, parent))
            step, gender = inverse(LINKS[parent]), rng.random() < 0.5
        else:
            self.facts.append((new, person, link))
            self.taken |= {(person, link), (new, link)} if link == "spouse" else {(person, link)}
            step, gender = LINKS[link], link == "father" or (link == "spouse" and not male)
        self.male.append(gender)
        self.section.append(compose(self.section[person], step))
        self.away.append(self.away[person] + 1)
        return new

    def people(self) -> list[str]:
        """Persons by number, with their gender."""
        return [f"{'ego' if number == 0 else number} {'♂' if male else '♀'}" for number, male in enumerate(self.male)]


# %%
# The labels
# ----------
#
# Facts are typed edges. :class:`relgraph.EdgeType` gives each type a label, another one against the edge's direction,
# and one to a person's edge to itself. A pair without an edge does not attend. Ego is marked by an edge from ego to
# ego; labels without that mark let persons wait for a few steps before the game begins.

LABELER = rg.EdgeType([*LINKS, "ego"], inverse=True, self_loop=True)


def graph(family: Family, marked: bool = True) -> rg.Graph:
    """The facts as edges; ego's mark is an edge from ego to ego."""
    facts = [*family.facts, *[(0, 0, "ego")] * marked]
    ends = torch.tensor([fact[:2] for fact in facts], dtype=torch.int64).view(-1, 2).T
    kinds = torch.tensor([LABELER.types.index(link) for _, _, link in facts], dtype=torch.int64)
    return rg.Graph(ends, len(family.male), edge_type=kinds)


@dataclass(frozen=True)
class Batch:
    """Families packed end to end; ``quiet`` are the labels of the same families without ego's mark."""

    labels: rg.EdgeLabels
    quiet: rg.EdgeLabels
    away: Tensor
    kin: Tensor

    @classmethod
    def make(cls, links: int, count: int, rng: random.Random) -> Batch:
        families = [Family.grow(links, rng) for _ in range(count)]
        marked, quiet = (rg.Graph.batch([graph(family, mark) for family in families]) for mark in (True, False))
        turns, flips = torch.tensor([section for family in families for section in family.section]).T
        away = torch.tensor([links for family in families for links in family.away])
        return cls(LABELER(marked), LABELER(quiet), away, turns + 4 * flips)


# %%
# The model
# ---------
#
# Every person starts as the same learned vector, and one :class:`relgraph.RelationEncoderLayer` is applied again and
# again. The rows differ in its tables alone.

VARIANTS = {"both": ("key", "value"), "a^V alone": ("value",), "a^K alone": ("key",), "none": ()}
WIDTH, HEADS, HIDDEN = 64, 4, 256


def without_ids(labels: rg.EdgeLabels) -> rg.EdgeLabels:
    """The same edges, which say who attends and nothing else: for a layer without tables."""
    return rg.EdgeLabels(labels.edge_index, torch.full_like(labels.ids, -1), 0, q_len=labels.q_len, ptr=labels.k_ptr)


class Kin(nn.Module):
    """One relation layer, applied again and again; every person starts as the same vector."""

    def __init__(self, tables: Sequence[str]) -> None:
        super().__init__()
        self.tables = bool(tables)
        known = {"num_labels": LABELER.num_labels, "names": LABELER.names, "tables": tables} if tables else {}
        self.person = nn.Parameter(torch.randn(WIDTH))
        self.layer = rg.RelationEncoderLayer(WIDTH, HEADS, HIDDEN, 0.0, "gelu", **known)
        self.answer = nn.Linear(WIDTH, CLASSES)

    def forward(self, batch: Batch, steps: int, quiet: int = 0) -> Tensor:
        """Scores after each step, ``[steps, T, CLASSES]``; ``quiet`` more steps pass before ego is marked."""
        labels, waiting = (x if self.tables else without_ids(x) for x in (batch.labels, batch.quiet))
        x = self.person.expand(labels.q_len, WIDTH)
        for _ in range(quiet):
            x = self.layer(x, labels=waiting)
        states = []
        for _ in range(steps):
            x = self.layer(x, labels=labels)
            states.append(x)
        return self.answer(torch.stack(states))


# %%
# Training
# --------
#
# Everybody 2 to 4 links away is asked about at every step, from one step after the news can have come to them. Quiet
# steps at the beginning let persons wait as long as those at the end of a long chain do. ``train`` in
# ``example_runs.py`` takes the losses one by one: AdamW with warm-up and linear decay.

TRAINED, TESTED = (2, 3, 4), tuple(range(2, 11))
LEARNING_RATE, SLACK = 4e-3, 1


@dataclass(frozen=True)
class Size:
    """How much is trained and tested.

    Attributes:
        steps: of training.
        families: in a batch.
        tested: families for each length.
        spare: up to so many steps of the layer after the last answer is due.
        quiet: up to so many before ego is marked.
    """

    steps: int
    families: int
    tested: int
    spare: int
    quiet: int


FULL, QUICK = Size(500, 24, 100, 2, 6), Size(340, 12, 40, 1, 1)
SECONDS_A_STEP = {FULL: 0.06, QUICK: 0.03}


def losses(model: Kin, size: Size, seed: int) -> Iterator[Tensor]:
    """The loss of every step, without end."""
    rng = random.Random(f"train {seed}")
    while True:
        batch = Batch.make(max(TRAINED), size.families, rng)
        count = max(TRAINED) + SLACK + rng.randint(0, size.spare)
        asked = (batch.away >= min(TRAINED)) & (batch.away <= max(TRAINED))
        when = asked & (torch.arange(1, count + 1)[:, None] >= batch.away + SLACK)
        scores = model(batch, count, rng.randint(0, size.quiet))
        yield cross_entropy(scores[when], batch.kin.expand(count, -1)[when])


# %%
# What came out
# -------------
#
# Right answers are counted by the number of links, in families that are the same for all rows and seeds.


@dataclass
class Run:
    """One variant trained with one seed; accuracies by the number of links."""

    variant: str
    seed: int
    validation: dict[int, float]
    test: dict[int, float]
    seconds: float
    losses: list[float] = field(repr=False)

    def __post_init__(self) -> None:
        """Numbers of links are strings in JSON."""
        self.validation, self.test = (
            {int(links): right for links, right in part.items()} for part in (self.validation, self.test)
        )


@torch.no_grad()
def accuracy(model: Kin, lengths: Sequence[int], families: int, seed: str) -> dict[int, float]:
    """For each length the share of right answers about persons so many links away, in families of their own."""
    rng, right = random.Random(seed), {}
    for links in lengths:
        batch = Batch.make(links, families, rng)
        answer = model(batch, links + SLACK + 1)[-1].argmax(-1)
        right[links] = (answer == batch.kin)[batch.away == links].double().mean().item()
    return right


def report(runs: Sequence[Run]) -> str:
    """The table that is printed: percent right by the number of links."""
    groups = {"2–4": TRAINED, **{str(links): (links,) for links in TESTED if links not in TRAINED}, "2–10": TESTED}
    lines = [f"{'tables':<10}" + "".join(f"{name:>13}" for name in groups) + f"{'seconds':>9}"]
    for name in dict.fromkeys(run.variant for run in runs):
        mine = [run for run in runs if run.variant == name]
        cells = (percent([mean(run.test[links] for links in group) for run in mine], "") for group in groups.values())
        lines.append(f"{name:<10}" + "".join(f"{c:>13}" for c in cells) + f"{mean(r.seconds for r in mine):>9.0f}")
    return "\n".join(lines)


# %%
# Pictures
# --------
#
# Accuracy by the number of links; the labels of one small family; what the tables of the row ``both`` hold; and how
# much attention each label gets, as the layer is applied again and again to families of chains with four links.


def draw_results(folder: Path, runs: Sequence[Run]) -> None:
    """A line a row, with a dot for each of several seeds."""
    with picture(folder / "results.png", 8, 4.5) as ax:
        ax.axvspan(min(TRAINED), max(TRAINED), color="0.93", label="trained lengths")
        for number, name in enumerate(dict.fromkeys(run.variant for run in runs)):
            mine = [run for run in runs if run.variant == name]
            shares = [100 * mean(run.test[links] for run in mine) for links in TESTED]
            tied = {"linewidth": 7, "alpha": 0.4} if name == "a^K alone" else {}  # with "none", which lies on it
            ax.plot(TESTED, shares, marker="o", color=f"C{number}", label=name, **tied)
            for run in mine if len(mine) > 1 else ():
                ax.plot(TESTED, [100 * run.test[links] for links in TESTED], ".", color=f"C{number}", alpha=0.5)
        ax.axhline(100 / CLASSES, color="0.5", linestyle=":", label="guessing")
        ax.set(xlabel="links from ego", ylabel="percent right", ylim=(0, 103), title="Kin classes by length of chain")
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        ax.spines[["top", "right"]].set_visible(False)


@torch.no_grad()
def draw_model(folder: Path, model: Kin) -> None:
    """One family's labels, and what ``model`` has learned; it must have both tables."""
    family = Family.grow(2, random.Random(1))
    with picture(folder / "family.png", 8, 5) as ax:
        rg.plot.label_matrix(LABELER(graph(family)), LABELER.names, tokens=family.people(), ax=ax)
        ax.set_title("What the key (column) is to the query (row): hatched pairs do not attend")
    assert model.layer.self_attn.tables is not None
    tables = model.layer.self_attn.tables()
    with picture(folder / "tables.png", 11, 8, 2, 2) as axes:
        for row, (name, table) in zip(axes, tables.items(), strict=True):
            rg.plot.table_norms(table, LABELER.names, ax=row[0])
            rg.plot.table_similarity(table, LABELER.names, ax=row[1])
            row[0].set_title(f"{name}: length of a label's vector")
            row[1].set_title(f"{name}: cosines of the vectors")
    batch, steps = Batch.make(max(TRAINED), 20, random.Random("pictures")), max(TRAINED) + SLACK
    with rg.record_attention(model) as record:
        model(batch, steps)
    (calls,) = record.values()  # of the one layer
    masses = [call.label_mass.mean(1) for call in calls if isinstance(call.label_mass, Tensor)]
    with picture(folder / "attention.png", 9, 6) as ax:
        rg.plot.label_mass(torch.stack(masses), LABELER.names, axes="LHR", ax=ax)
        ax.set_title("Attention by label, each time that the one layer is applied")


# %%
# The command
# -----------
#
# Runs are kept one by one, so that the same command goes on after Ctrl-C.


def parse_arguments(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    parser.add_argument("--quick", action="store_true", help="one seed, fewer and smaller batches: less than a minute")
    parser.add_argument("--seeds", type=positive(int), help="runs of each row (3, quick 1)")
    parser.add_argument("--steps", type=positive(int), help=f"training steps a run ({FULL.steps}, quick {QUICK.steps})")
    parser.add_argument("--out", type=Path, help="where all is written (kinship-out, quick kinship-out/quick)")
    parser.add_argument("--fresh", action="store_true", help="begin anew, whatever stands in --out")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Kin classes along a chain of relatives, by four choices of tables.")
    arguments = parse_arguments(parser, argv)
    torch.set_num_threads(1)
    usual, out = (QUICK, "kinship-out/quick") if arguments.quick else (FULL, "kinship-out")
    size, seeds = (
        replace(usual, steps=arguments.steps or usual.steps),
        range(arguments.seeds or (3, 1)[arguments.quick]),
    )
    try:
        runs = Runs(arguments.out or Path(out), Run, {"quick": arguments.quick, **asdict(size)}, fresh=arguments.fresh)
    except ValueError as error:
        parser.error(str(error))
    count = len(VARIANTS) * len(seeds)
    announce(count, count * size.steps * SECONDS_A_STEP[usual], runs.folder)

    def run(name: str, seed: int) -> tuple[Run, Kin]:
        torch.manual_seed(seed)
        model, start = Kin(VARIANTS[name]), time.perf_counter()
        found = train(model, losses(model, size, seed), size.steps, LEARNING_RATE, title=f"{name}, seed {seed}")
        seconds = time.perf_counter() - start
        validation = accuracy(model, TRAINED, size.tested, "validation")
        return Run(name, seed, validation, accuracy(model, TESTED, size.tested, "test"), seconds, found), model

    finished = runs.each(list(VARIANTS), seeds, run)
    print(report(runs.done))
    if not finished:
        return INTERRUPTED
    print(f"results: {runs.path}")
    draw_results(runs.folder, runs.done)
    model = Kin(VARIANTS["both"])
    runs.load(model, "both", seeds[0])
    draw_model(runs.folder, model)
    return 0


if __name__ == "__main__" and (status := until_stopped(main)):
    raise SystemExit(status)
