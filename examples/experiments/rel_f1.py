"""rel-f1: a database of races is asked about drivers, up to six years after its last row.

This is no page of the gallery yet.

RelBench (Robinson et al. 2024) asks three questions about racing drivers: does a driver fail to finish a race of the
next 30 days on the lead lap, does he qualify among the first three, and which place does he reach on average in the
next 60 days? By RelBench's default protocol, the database ends on January 1, 2010, and the questions of the test go on
to 2013 and 2016. Three in ten test questions are about drivers who had no race by then.

So all rows but one train on questions with such a gap: a question of training comes with each of four (or seven) ends
of the database, the new years before it. The rows:

- ``ours``: cells of the driver, his newest results and those of his teams are nodes; pairs of them have the labels of
  :class:`relgraph.labelers.CellRelations`;
- ``ours, no labels``: the same without labels;
- ``HGTConv``: PyG's heterogeneous graph Transformer over the rows of the same samples;
- ``LightGBM, forty features, frozen``: trees over means of a driver's last 1 to 50 races, ages and counts;
- ``LightGBM, forty features``: the same, trained on questions without a gap.

Settings were chosen by questions of 2005 to 2009 to a database that ends on January 1, 2005 (``--validate``).

.. code-block:: sh

    python examples/run.py rel_f1 --task dnf                # a table: all rows, three seeds
    python examples/run.py rel_f1 --task dnf --validate
    python examples/run.py rel_f1 --task dnf --quick        # one seed, few steps, a minute

``--task`` is ``dnf``, ``top3`` or ``position``. ``--data`` names the folder with ``rel-f1`` (else RELGRAPH_DATA, else
``data``); nothing is downloaded. It holds RelBench's tables as ``db/TABLE.csv.gz`` and its questions as
``tasks/TASK/PART.csv.gz``. ``pip install lightgbm`` adds its two rows.

The command writes ``results.json`` and models to ``rel-f1-out/TASK-PART/``. After Ctrl-C the same command continues
within a run.
"""

from __future__ import annotations

import math
import random
import time
from argparse import Namespace
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from example_options import Options
from example_runs import by_row, by_seed, leads, train_on
from graph_classification import roc_auc
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, gelu, l1_loss
from torch_geometric.nn import HGTConv

import relgraph as rg
from experiments import Experiment, Work
from relgraph.interop.pandas import KINDS, YEAR, Database, Sample

try:
    import lightgbm
except ImportError:
    lightgbm = None


@dataclass(frozen=True)
class Task:
    """One of RelBench's tasks.

    Attributes:
        name: its folder.
        column: the answer's column.
        yes_no: whether answers are 0 or 1, scored by ROC-AUC; else numbers, scored by the mean absolute error.
        seasons: in how many seasons after the freeze the test asks.
    """

    name: str
    column: str
    yes_no: bool
    seasons: int


TASKS = {
    "dnf": Task("driver-dnf", "did_not_finish", True, 4),
    "top3": Task("driver-top3", "qualifying", True, 4),
    "position": Task("driver-position", "position", False, 7),
}


class Question(NamedTuple):
    """What is asked about a driver, and when; the answer follows from the races of the next 30 or 60 days."""

    driver: int
    time: pd.Timestamp
    answer: float


def read(path: Path) -> pd.DataFrame:
    """A table with its times."""
    frame = pd.read_csv(path)
    for column in {"date", "dob"} & {*frame.columns}:
        frame[column] = pd.to_datetime(frame[column], format="ISO8601")
    return frame


def read_questions(folder: Path, task: Task, part: str) -> list[Question]:
    frame = read(folder / "tasks" / task.name / f"{part}.csv.gz")
    return [Question(*row) for row in frame[["driverId", "date", task.column]].itertuples(index=False, name=None)]


Asked = tuple[int, pd.Timestamp]  # a driver, and the time after which the database has no rows
Group = tuple[Asked, list[Question]]


def new_year(year: int) -> pd.Timestamp:
    return pd.Timestamp(year, 1, 1)


def frozen(questions: Sequence[Question], years: Callable[[Question], Sequence[int]]) -> list[Group]:
    """The questions of each driver and freeze; a question may come with several freezes."""
    groups: dict[Asked, list[Question]] = {}
    for question in questions:
        for year in years(question):
            groups.setdefault((question.driver, new_year(year)), []).append(question)
    return list(groups.items())


# ``driverId`` and what a driver is called are left out: they say when a driver entered the list, which is later than
# many questions. Rows without a date became known with their race.

CELLS = {
    "circuits": (),
    "races": ("date",),
    "drivers": ("nationality", "question"),
    "constructors": ("name", "nationality"),
    "results": ("grid", "positionOrder", "points", "statusId"),
    "standings": ("points", "position", "wins"),
    "qualifying": ("position",),
    "constructor_results": ("points",),
    "constructor_standings": ("points", "position", "wins"),
}
KEYS = {"circuits": "circuitId", "races": "raceId", "drivers": "driverId", "constructors": "constructorId"}
OWNERS = {key: table for table, key in KEYS.items()}
QUESTION = KINDS.index("hidden")


def read_tables(folder: Path) -> dict[str, pd.DataFrame]:
    tables = {name: read(folder / "db" / f"{name}.csv.gz") for name in CELLS}
    tables["drivers"]["question"] = 0.0  # its cell is where a model answers
    tables["results"]["statusId"] = tables["results"].statusId.astype(str)  # a name, not a number
    return tables


def foreign_keys(tables: Mapping[str, pd.DataFrame]) -> dict[tuple[str, str], str]:
    """The table that each column of keys refers to."""
    return {
        (name, column): OWNERS[column]
        for name, frame in tables.items()
        for column in frame.columns
        if column in OWNERS and KEYS.get(name) != column
    }


def database_of(tables: Mapping[str, pd.DataFrame]) -> Database:
    """The tables with their keys and times."""
    keys = {name: [column for column in frame.columns if column in OWNERS] for name, frame in tables.items()}
    return Database(
        {name: frame[[*keys[name], *CELLS[name]]] for name, frame in tables.items()},
        primary_keys=KEYS, foreign_keys=foreign_keys(tables), times={"races": "date"}, most_categories=250,
    )  # fmt: skip


# %%
# A sample holds the newest rows of the driver and of the teams of these rows.

MOST_CELLS = 192
WIDTHS = {
    ("results", "driverId"): 16, ("standings", "driverId"): 2, ("qualifying", "driverId"): 8,
    ("constructor_standings", "constructorId"): 2, ("constructor_results", "constructorId"): 4,
    ("results", "constructorId"): 8,
}  # fmt: skip
LABELER = rg.labelers.CellRelations(time=True, attend="all")


class Known:
    """What is known about a driver at a time: cells with the labels of their pairs, made when first asked for."""

    def __init__(self, tables: Mapping[str, pd.DataFrame]) -> None:
        self.database = database_of(tables)
        self.tables = {name: number for number, name in enumerate(tables)}
        self.links = sorted({(child, parent) for (child, _), parent in foreign_keys(tables).items()})
        self.born, self._results = tables["drivers"].dob, tables["results"]
        self.season = lru_cache(None)(self._season)
        self._found: dict[Asked, tuple[Sample, Tensor]] = {}

    def __call__(self, asked: Asked) -> tuple[Sample, Tensor]:
        if asked not in self._found:
            driver, freeze = asked
            sample = self.database.around(
                "drivers", driver, until=freeze, most_cells=MOST_CELLS, width=WIDTHS, newest=True, hide="question"
            )
            labels = LABELER(sample.cells)
            assert isinstance(labels, rg.DenseLabels)
            self._found[asked] = sample, labels.to_dense()[0].flatten().to(torch.int8)
        return self._found[asked]

    def _season(self, freeze: pd.Timestamp) -> tuple[float, float]:
        """Cars per race and the share of cars that finish, in the year before a freeze."""
        dates = self._results.date
        last = self._results[(dates > freeze - pd.Timedelta(days=365)) & (dates <= freeze)]
        if last.empty:
            return 20.0, 0.3
        return len(last) / last.raceId.nunique(), float((last.statusId == "1").mean())


def years_between(later: pd.Timestamp, earlier: pd.Timestamp) -> float:
    return (later - earlier).total_seconds() / YEAR


def about(question: Question, freeze: pd.Timestamp, known: Known) -> list[float]:
    """How old the database and the driver are when a question is asked, the time of the year and the last season."""
    born, (cars, finished) = known.born[question.driver], known.season(freeze)
    turn = 2 * math.pi * question.time.day_of_year / 365.25
    age = 0.0 if pd.isna(born) else (years_between(question.time, born) - 29) / 5
    waves = [wave(times * turn) for times in (1, 2) for wave in (math.sin, math.cos)]
    return [years_between(question.time, freeze) / 2 - 1, age, *waves, cars / 5 - 5, 5 * finished - 1.5]


ABOUT = 8


@dataclass(frozen=True)
class Batch:
    """Samples packed end to end, with T cells and S rows, and the questions about them."""

    columns: Tensor
    numbers: Tensor
    codes: Tensor
    ages: Tensor  # years from the cell's row to the freeze, NaN for rows without a time
    labels: rg.BlockLabels
    asked: Tensor  # the place of each sample's question cell
    rows: Tensor  # the row of each cell
    tables: Tensor  # the table of each row
    parents: Tensor  # (child row, parent row)
    about: Tensor  # [Q, ABOUT]
    sample: Tensor  # which sample each question is about
    cars: Tensor  # per race, in the last season that each question knows
    answers: Tensor

    @classmethod
    def make(cls, groups: Sequence[Group], known: Known) -> Batch:
        found = [known(asked) for asked, _ in groups]
        samples = [sample for sample, _ in found]
        cells = [sample.cells for sample in samples]
        first = torch.tensor([0, *(len(sample.rows) for sample in samples)]).cumsum(0)[:-1].tolist()
        ptr = torch.tensor([0, *map(len, cells)]).cumsum(0)
        ids = torch.cat([ids for _, ids in found]).long()
        kinds = torch.cat([sample.kinds for sample in samples])
        ages = [(one.until - one.times[one.rows]) / YEAR for one in cells]
        questions = [(place, freeze, one) for place, ((_, freeze), asks) in enumerate(groups) for one in asks]
        return cls(
            torch.cat([one.columns for one in cells]),
            # times are ages already, and few numbers are far from their mean
            torch.cat([sample.numbers for sample in samples]).clamp(-4, 4),
            torch.cat([sample.codes for sample in samples]),
            torch.cat(ages).float(),
            rg.BlockLabels(ids, LABELER.num_labels, ptr),
            (kinds == QUESTION).nonzero()[:, 0],
            torch.cat([one.rows + start for one, start in zip(cells, first, strict=True)]),
            torch.tensor([known.tables[table] for sample in samples for table, _ in sample.rows]),
            torch.cat([one.parents + start for one, start in zip(cells, first, strict=True)], 1),
            torch.tensor([about(one, freeze, known) for _, freeze, one in questions]),
            torch.tensor([place for place, _, _ in questions]),
            torch.tensor([known.season(freeze)[0] for _, freeze, _ in questions]),
            torch.tensor([float(one.answer) for _, _, one in questions]),
        )


# Questions about one driver after one freeze share their sample: the model reads it once, and a small network answers
# each question.

WIDTH, HEADS, LAYERS, DROPOUT = 64, 4, 2, 0.1


class Transformer(nn.Module):
    """Cells attend to each other, with or without labels of their pairs; the question's cell is read."""

    def __init__(self, labeler: rg.Labeler | None) -> None:
        super().__init__()
        known = {"tables": ()} if labeler is None else {"labeler": labeler}
        layer = rg.RelationEncoderLayer(WIDTH, HEADS, 2 * WIDTH, DROPOUT, "gelu", norm_first=True, **known)
        self.encoder, self.labeled = rg.RelationEncoder(layer, LAYERS, nn.LayerNorm(WIDTH)), labeler is not None

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        labels = batch.labels
        if not self.labeled:  # labels without ids say only which cells make up a sample
            labels = rg.DistanceLabels(labels.q_len, lookup=[-1], left=0, ptr=labels.k_ptr)
        return self.encoder(x, labels=labels)[batch.asked]


class RowGraph(nn.Module):
    """PyG's heterogeneous graph Transformer over rows, which are sums of their cells; the driver's row is read."""

    def __init__(self, tables: Sequence[str], links: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self.tables, self.links = list(tables), list(links)
        edges = [(a, "to", b) for child, parent in links for a, b in ((child, parent), (parent, child))]
        self.layers = nn.ModuleList(HGTConv(WIDTH, WIDTH, (self.tables, edges), HEADS) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS + 1))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        rows = x.new_zeros(len(batch.tables), WIDTH).index_add(0, batch.rows, x)
        place, edges = torch.zeros_like(batch.tables), {}
        of_table = [(batch.tables == number).nonzero()[:, 0] for number in range(len(self.tables))]
        for held in of_table:
            place[held] = torch.arange(len(held))
        child, parent = batch.parents
        for one, other in self.links:
            chosen = (batch.tables[child] == self.tables.index(one)) & (
                batch.tables[parent] == self.tables.index(other)
            )
            pair = torch.stack([place[child[chosen]], place[parent[chosen]]])
            edges |= {(one, "to", other): pair, (other, "to", one): pair.flip(0)}
        for layer, norm in zip(self.layers, self.norms, strict=False):
            normed = norm(rows)
            found = layer({name: normed[held] for name, held in zip(self.tables, of_table, strict=True)}, edges)
            new = torch.zeros_like(rows)
            for name, held in zip(self.tables, of_table, strict=True):
                new = new.index_copy(0, held, found[name])
            rows = rows + self.dropout(new)
        return self.norms[-1](rows[batch.rows[batch.asked]])


class Model(nn.Module):
    """Reads cells by a body, and answers the questions about each sample."""

    def __init__(self, body: nn.Module, database: Database, yes_no: bool) -> None:
        super().__init__()
        self.yes_no = yes_no
        columns = len(database.columns)
        self.columns, self.slopes = nn.Embedding(columns, WIDTH), nn.Embedding(columns, WIDTH)
        self.codes = nn.Embedding(database.num_codes, WIDTH)
        nn.init.normal_(self.codes.weight, std=0.2)
        self.ages = nn.Sequential(nn.Linear(3, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.body, self.dropout = body, nn.Dropout(DROPOUT)
        # a driver without a row has no cell that says when he drives: his place needs the season, a ranking does not
        self.read, self.about = nn.Linear(WIDTH, WIDTH), nn.Linear(ABOUT - 2 if yes_no else ABOUT, WIDTH)
        self.answer = nn.Linear(WIDTH, 1)
        nn.init.zeros_(self.answer.weight)

    def forward(self, batch: Batch) -> Tensor:
        """``[Q]``, the answers: logits, or places."""
        dated = ~batch.ages.isnan()
        ages = torch.where(dated, batch.ages, -1.0)
        x = self.columns(batch.columns) + self.slopes(batch.columns) * batch.numbers[:, None] + self.codes(batch.codes)
        x = x + self.ages(torch.stack([ages / 5, ages.clamp(min=0).log1p(), dated.float()], 1))
        read = self.read(self.dropout(self.body(self.dropout(x), batch)))
        about = self.about(batch.about[:, : self.about.in_features])
        found = self.answer(self.dropout(gelu(read[batch.sample] + about)))[:, 0]
        return found if self.yes_no else (0.6 + 0.25 * found) * batch.cars


OURS, UNLABELED, GRAPH = "ours", "ours, no labels", "HGTConv"
FORTY, FORTY_FROZEN = "LightGBM, forty features", "LightGBM, forty features, frozen"
ROWS = (OURS, UNLABELED, GRAPH, *((FORTY, FORTY_FROZEN) if lightgbm else ()))


def make_model(row: str, known: Known, task: Task) -> Model:
    body = RowGraph([*known.tables], known.links) if row == GRAPH else Transformer(LABELER if row == OURS else None)
    return Model(body, known.database, task.yes_no)


# A question of training comes with each of as many freezes as there are seasons between the freeze and the test, so
# rows are as old in training as in the test. A step takes the questions about 16 samples.

BATCH, RATE = 16, 2e-3
FREEZES = {"val": 2005, "test": 2010}


def training_groups(questions: Sequence[Question], seasons: int) -> list[Group]:
    return frozen(questions, lambda one: range(one.time.year - seasons + 1, one.time.year + 1))


def loss_of(model: Model, groups: Sequence[Group], known: Known, task: Task, seed: int) -> Callable[[int], Tensor]:
    """The loss of a step by its number: each pass over the samples has an order of its own."""
    each = max(1, len(groups) // BATCH)

    @lru_cache(1)
    def order(epoch: int) -> list[Group]:
        return random.Random(f"{seed}-{epoch}").sample(groups, len(groups))

    def loss(step: int) -> Tensor:
        batch = Batch.make(order(step // each)[step % each * BATCH :][:BATCH], known)
        if task.yes_no:
            return binary_cross_entropy_with_logits(model(batch), batch.answers)
        return l1_loss(model(batch) / batch.cars, batch.answers / batch.cars)

    return loss


@torch.inference_mode()
def answers_of(model: Model, groups: Sequence[Group], known: Known) -> list[float]:
    model.eval()
    batches = [Batch.make(groups[first : first + 64], known) for first in range(0, len(groups), 64)]
    return torch.cat([model(batch) for batch in batches]).tolist()


def score_of(answers: Sequence[float], groups: Sequence[Group], task: Task) -> float:
    """The ROC-AUC, or the mean absolute error."""
    found, wanted = torch.tensor(answers), torch.tensor([float(one.answer) for _, asks in groups for one in asks])
    return roc_auc(found, wanted) if task.yes_no else (found - wanted).abs().mean().item()


# %%
# A peer without a network: trees over forty numbers about a driver's past.

WINDOWS = (1, 2, 3, 5, 10, 20, 50)
TREES = {
    "num_leaves": 7, "learning_rate": 0.03, "min_data_in_leaf": 40, "feature_fraction": 0.5,
    "bagging_fraction": 0.5, "bagging_freq": 1, "num_threads": 1, "verbose": -1,
}  # fmt: skip
ROUNDS = 150


class Past:
    """Forty features: means of five columns over a driver's last 1 to 50 races, and five ages and counts."""

    def __init__(self, tables: Mapping[str, pd.DataFrame]) -> None:
        results, self.born = tables["results"], tables["drivers"].dob
        finished = (results.statusId == "1").astype(float)
        columns = ("grid", "positionOrder", "points", "finished")
        self.results = self._by_driver(results.assign(finished=finished), columns)
        self.qualifying = self._by_driver(tables["qualifying"], ("position",))
        self.means = lru_cache(None)(self._means)

    @staticmethod
    def _by_driver(frame: pd.DataFrame, columns: Sequence[str]) -> dict[Any, tuple[Any, Any]]:
        ordered = frame.sort_values("date", kind="stable")
        return {
            driver: (rows.date.tolist(), rows[[*columns]].to_numpy(np.float64))
            for driver, rows in ordered.groupby("driverId")
        }

    def _means(self, driver: int, until: pd.Timestamp) -> tuple[list[float], list[pd.Timestamp]]:
        """The 35 means, NaN where there was no race, and the days of the races."""
        means, days = [], []
        for held, width in ((self.qualifying, 1), (self.results, 4)):
            dates, values = held.get(driver, ([], np.zeros((0, width))))
            days = dates[: bisect_right(dates, until)]
            for window in WINDOWS:
                means += values[: len(days)][-window:].mean(0).tolist() if days else [math.nan] * width
        return means, days

    def features(self, question: Question, freeze: pd.Timestamp) -> list[float]:
        means, days = self.means(question.driver, freeze)
        since = [years_between(question.time, days[at]) if days else math.nan for at in (0, -1)]
        born = self.born[question.driver]
        age = math.nan if pd.isna(born) else years_between(question.time, born)
        return [*means, age, *since, years_between(question.time, freeze), len(days)]


def plant(
    row: str, seed: int, task: Task, train: Sequence[Question], tests: Sequence[Group], past: Past
) -> list[float]:
    """Answers of LightGBM; only its second row has learned from rows as old as those of the test."""
    assert lightgbm is not None
    asked = [(one, one.time) for one in train]
    if row == FORTY_FROZEN:
        asked = [(one, freeze) for (_, freeze), asks in training_groups(train, task.seasons) for one in asks]
    data = lightgbm.Dataset(
        np.array([past.features(*pair) for pair in asked]), np.array([float(one.answer) for one, _ in asked])
    )
    options = TREES | {"objective": "binary" if task.yes_no else "l1", "seed": seed}
    trees = lightgbm.train(options, data, ROUNDS)
    wanted = [past.features(one, freeze) for (_, freeze), asks in tests for one in asks]
    return np.asarray(trees.predict(np.array(wanted))).tolist()


STEPS, QUICK_STEPS, SECONDS_A_STEP = 400, 30, 0.06


@dataclass
class Run:
    """One row trained with one seed: its score, and its answers in the order of the questions."""

    variant: str
    seed: int
    score: float
    parameters: int
    seconds: float
    answers: list[float] = field(repr=False)


def report(runs: Sequence[Run], task: Task, tests: Sequence[Group]) -> str:
    """The table that the command prints, and how far the row with labels is ahead of the others."""
    seeds = by_seed(runs, "score")
    lines = [f"{'row':<34}{'AUROC' if task.yes_no else 'MAE':>16}{'mean answer':>13}{'parameters':>12}{'seconds':>9}"]
    for name, mine in by_row(runs).items():
        scores = [*seeds[name].values()]
        spread = f" ± {stdev(scores):.3f}" if len(scores) > 1 else ""
        together = score_of(np.mean([run.answers for run in mine], 0).tolist(), tests, task)
        sizes = f"{mine[0].parameters:>12,}{mean(run.seconds for run in mine):>9.0f}"
        lines.append(f"{name:<34}{f'{mean(scores):.3f}{spread}':>16}{together:>13.3f}{sizes}")
    return "\n".join([*lines, *leads(seeds, [(OURS, name) for name in ROWS if name != OURS], 1, 3)])


def options(options: Options) -> None:
    options.add_data("rel-f1")
    options.add_argument("--task", choices=TASKS, default="dnf", help="the question (dnf)")
    options.add_argument("--validate", action="store_true", help="ask the questions of 2005 to 2009, frozen at 2005")


def check(options: Options, arguments: Namespace) -> None:
    options.find_data(arguments, "rel-f1/db")
    arguments.part = "val" if arguments.validate else "test"
    arguments.out = arguments.out / f"{arguments.task}-{arguments.part}"


def begin(arguments: Namespace) -> Work:
    task, part, steps, folder = TASKS[arguments.task], arguments.part, arguments.steps, arguments.data / "rel-f1"
    tables = read_tables(folder)
    known, past = Known(tables), Past(tables)
    train = read_questions(folder, task, "train")
    groups = training_groups(train, task.seasons)
    tests = frozen(read_questions(folder, task, part), lambda _: [FREEZES[part]])
    if lightgbm is None:
        print(f"rows left out, because lightgbm is not installed: {FORTY}; {FORTY_FROZEN}")

    def run(row: str, seed: int) -> tuple[Run, Model | None]:
        if row in (FORTY, FORTY_FROZEN):
            start = time.thread_time()
            answers = plant(row, seed, task, train, tests, past)
            return Run(row, seed, score_of(answers, tests, task), 0, time.thread_time() - start, answers), None
        torch.manual_seed(seed)
        model = make_model(row, known, task)
        loss = loss_of(model, groups, known, task, seed)
        seconds = train_on(arguments.out, row, seed, model, loss, steps, RATE)
        answers = answers_of(model, tests, known)
        size = sum(weight.numel() for weight in model.parameters())
        return Run(row, seed, score_of(answers, tests, task), size, seconds, answers), model

    settings = {
        "task": task.name, "asked": part, "frozen": FREEZES[part], "seasons": task.seasons, "steps": steps,
        "batch": BATCH, "rate": RATE, "dropout": DROPOUT, "width": WIDTH, "layers": LAYERS,
    }  # fmt: skip
    seconds = len(arguments.rows) * len(arguments.seeds) * steps * SECONDS_A_STEP
    return Work(settings, seconds, run, report=lambda runs: report(runs, task, tests))


EXPERIMENT = Experiment(
    Run, ROWS, "one seed, few steps", {"seeds": (3, 1), "steps": (STEPS, QUICK_STEPS)}, begin,
    tell=lambda run: f"{run.score:.3f}", options=options, check=check,
)  # fmt: skip
