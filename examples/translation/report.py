"""The command ``report``: a page of tables and pictures from a folder of runs, and ``results.json``, what they need.

A figure is the mean over seeds, ± the sample standard deviation. A difference is the mean over the seeds that both rows
have. Its interval comes from a paired bootstrap over seeds and sentences, or is Student's over seeds (†, and that of
perplexity).
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from scipy.stats import t
from torch import Tensor
from torch.nn.functional import cosine_similarity

from examples.translation import pictures
from examples.translation.bootstrap import bootstrapped, resampled_bleu
from examples.translation.files import save_text
from examples.translation.intervals import interval
from examples.translation.training import LOG, load_model

RESULTS, STATISTICS = "results.json", "statistics.pt"
TEST, KINDS = "test", ("key", "value")
SHAPES = {(128, 256, 2): "base: ", (256, 1024, 2): "big: ", (128, 512, 1): "depth 1: ", (128, 512, 3): "depth 3: "}
"""Width, hidden width and layers of models whose rows are compared among themselves, in tables of their own."""

Run = dict[str, Any]
Rows = dict[str, list[Run]]
Claim = tuple[str, str, str]
"""A row, another that it is compared with, and a test set."""


def relative(distance: int) -> str:
    """The row with both tables for distances up to ``distance``."""
    return f"relative, k = {distance}"


DISTANCES = [relative(k) for k in (0, 1, 2, 4, 8, 16, 64, 256)]
PAPER, SHORT, SHIFTED, BOTH = relative(16), relative(4), "sinusoidal, shifted", "both, k = 16"
KEY, VALUE, PER_HEAD = (f"{PAPER}, {which}" for which in ("key table only", "value table only", "tables per head"))
PLAIN = ["none", "sinusoidal", SHIFTED, "learned", "rotary", "ALiBi"]

# BLEU of the paper: its Table 1 for English to German, and its Tables 2 and 3

PAPERS_SHAPES = {
    "base: sinusoidal": 26.5, "base: relative, k = 16": 26.8, "big: sinusoidal": 27.9, "big: relative, k = 8": 29.2,
}  # fmt: skip
PAPERS_DISTANCES = dict(zip(DISTANCES, ("12.5", "25.5", "25.8", "25.9", "–", "25.8", "25.9", "25.8"), strict=True))
PAPERS_TABLES = {PAPER: ("yes", "yes", "25.8"), KEY: ("yes", "no", "25.8"), VALUE: ("no", "yes", "25.3"),
                 "none": ("no", "no", "12.5")}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("runs", type=Path, help=f"a folder of runs, or a {RESULTS} that report wrote")
    parser.add_argument("--out", type=Path, default=Path("report"), help="a folder to write to (default: report)")


def run(args: argparse.Namespace) -> None:
    """Write ``report.md``, its pictures and ``results.json``."""
    record = read_runs(args.runs) if args.runs.is_dir() else json.loads(args.runs.read_text(encoding="utf-8"))
    rows = rows_of(record["runs"])
    names = pictures.draw(args.out, rows, tests_of(record["runs"]), record["similarity"])
    sections = [f"## {title}\n\n{text}\n" for title, text in tables_of(record).items() if text]
    sections += [f"![{name}]({name}.png)\n" for name in names]
    save_text(args.out / "report.md", "\n".join(sections))
    # a line for each run, so that differences between two reports can be read
    head = json.dumps({name: value for name, value in record.items() if name != "runs"})
    lines = ",\n".join(map(json.dumps, record["runs"]))
    save_text(args.out / RESULTS, f'{head[:-1]}, "runs": [\n{lines}\n]}}\n')
    print(f"{args.out}: report.md, {RESULTS} and pictures")


def read_runs(folder: Path) -> dict[str, Any]:
    """What the report needs of the finished runs in a folder."""
    runs, similarities = [], []
    for path in sorted(path.parent for path in folder.glob(f"*/{RESULTS}")):
        with (path / LOG).open(encoding="utf-8", newline="") as file:
            valid = [[int(row["step"]), float(row["nll"])] for row in csv.DictReader(file) if row["split"] == "valid"]
        entry: Run = {"name": path.name, **json.loads((path / RESULTS).read_text(encoding="utf-8")), "valid": valid}
        name = row_name(entry["config"]["model"])
        if name in map(relative, pictures.DISTANCES):
            tables = _tables(path)
            entry["norms"] = {name: _rounded(rows.norm(dim=-1), 4) for name, rows in tables.items()}
            if name == PAPER:
                first = torch.stack([tables[f"encoder.0.{kind}"] for kind in KINDS])
                similarities.append(cosine_similarity(first[:, :, None], first[:, None], dim=-1))  # [2, R, R]
        runs.append(entry)
    if not runs:
        raise ValueError(f"{folder} must hold at least one finished run, with its {RESULTS}; found none")
    similarity = _rounded(torch.stack(similarities).mean(0), 3) if similarities else []
    rows, bootstrap = rows_of(runs), []
    for test in tests_of(runs):
        claims = [claim for claim in claims_of(rows) if claim[2] == test]
        compared = [entry for row in dict.fromkeys(row for claim in claims for row in claim[:2]) for entry in rows[row]]
        if compared:
            statistics = [torch.load(folder / entry["name"] / STATISTICS)[test] for entry in compared]
            moves = dict(zip([entry["name"] for entry in compared], resampled_bleu(statistics).T, strict=True))
        for claim in claims:
            means = [torch.stack([moves[entry["name"]] for entry in own]).mean(0) for own in _shared(rows, claim)]
            found = bootstrapped(_differences(rows, claim, "bleu"), means[0] - means[1])
            bootstrap.append({**dict(zip(("one", "other", "test"), claim, strict=True)), **found})
    return {"similarity": dict(zip(KINDS, similarity, strict=False)), "bootstrap": bootstrap, "runs": runs}


def _tables(run: Path) -> dict[str, Tensor]:
    """The tables of a run's self-attention, ``[R, D]`` each, by names such as encoder.0.key."""
    transformer = load_model(run)[0].transformer
    return {
        f"{stack}.{number}.{kind}": getattr(layer.self_attn.tables, kind).rows.detach().double()
        for stack in ("encoder", "decoder")
        for number, layer in enumerate(getattr(transformer, stack).layers)
        for kind in KINDS
    }


def _rounded(values: Tensor, digits: int) -> Any:
    return json.loads(json.dumps(values.tolist()), parse_float=lambda text: round(float(text), digits))


def row_name(model: dict[str, Any]) -> str:
    """The row of a model: its shape, if it has one of ``SHAPES``, and what it knows about positions."""
    shape = SHAPES.get((model["width"], model["hidden"], model["layers"]), "")
    name = {"shifted": SHIFTED, "alibi": "ALiBi"}.get(model["positions"], model["positions"])
    if name in ("relative", "both"):
        name += f", k = {model['max_distance']}"
        kinds = [kind for kind in KINDS if model[f"{kind}_table"]]
        if len(kinds) < len(KINDS):
            name += f", {' '.join(kinds) or 'no'} table only"
        if model["per_head"] and shape != "base: ":  # all rows of base have tables per head
            name += ", tables per head"
    return shape + name


def rows_of(runs: Sequence[Run]) -> Rows:
    """The runs by row, each by seed.

    Raises:
        ValueError: runs of one shape differ in more than positions and seed.
    """
    rows: Rows = {}
    alike: dict[str, Run] = {}
    for entry in sorted(runs, key=_seed):
        name = row_name(entry["config"]["model"])
        first = alike.setdefault(name.rpartition(": ")[0], entry)
        if _settings(entry) != _settings(first):
            raise ValueError(f"{first['name']} and {entry['name']} must differ in nothing but positions and seed")
        rows.setdefault(name, []).append(entry)
    return rows


def _seed(entry: Run) -> int:
    return entry["config"]["training"]["seed"]


def _settings(entry: Run) -> Any:
    own = ("positions", "max_distance", "key_table", "value_table", "per_head", "seed")
    settings = {**entry["config"]["model"], **entry["config"]["training"]}
    tests = {name: (test["sentences"], test["tokens"], test["signature"]) for name, test in entry["tests"].items()}
    return {name: value for name, value in settings.items() if name not in own}, entry["search"], tests


def tests_of(runs: Sequence[Run]) -> list[str]:
    """The test sets: that of trained lengths, then those of longer sentences, the shortest first."""
    return sorted(runs[0]["tests"], key=lambda name: [int(number) for number in re.findall(r"\d+", name)])


def lengths_of(test: str) -> str:
    """A test set by the words of its sources."""
    return "trained lengths" if test == TEST else f"{test.removeprefix(f'{TEST}-').replace('-', '–')} words"


def claims_of(rows: Rows) -> list[Claim]:
    """Every comparison of the report for which both rows are there, with two seeds or more that both have."""
    tests = tests_of(next(iter(rows.values())))
    first, last = tests[:1], tests[1:][-1:]
    ends = first + last
    wanted = [
        (PAPER, "none", first),
        (PAPER, "sinusoidal", tests),
        *((PAPER, other, ends) for other in ("rotary", "ALiBi", SHIFTED)),
        *((other, "sinusoidal", ends) for other in ("rotary", "ALiBi", "learned")),
        (SHIFTED, "none", ends),
        (BOTH, PAPER, ends),
        *((row, PAPER, first) for row in DISTANCES if row != PAPER),
        *((SHORT, other, last) for other in (PAPER, "sinusoidal")),
        *((one, PAPER, ends) for one in (KEY, VALUE, PER_HEAD)),
        ("base: relative, k = 16", "base: sinusoidal", ends),
        ("big: relative, k = 8", "big: sinusoidal", ends),
        *(
            (f"depth {layers}: {row}", f"depth {layers}: {PAPER}", some)
            for layers in (1, 3)
            for row, some in ((relative(1), first), (SHORT, ends))
        ),
    ]
    claims = [(one, other, test) for one, other, some in wanted for test in some]
    return [claim for claim in claims if len(_shared(rows, claim)[0]) > 1]


def _shared(rows: Rows, claim: Claim) -> tuple[list[Run], list[Run]]:
    """The runs of both rows whose seeds both have, seed by seed: these saw the sentences in the same order."""
    one, other = ({_seed(entry): entry for entry in rows.get(row, ())} for row in claim[:2])
    shared = sorted(one.keys() & other.keys())
    return [one[seed] for seed in shared], [other[seed] for seed in shared]


def _differences(rows: Rows, claim: Claim, measure: str) -> list[float]:
    """The first row less the second, for each seed that both have."""
    pairs = zip(*_shared(rows, claim), strict=True)
    return [one["tests"][claim[2]][measure] - other["tests"][claim[2]][measure] for one, other in pairs]


def over_seeds(values: Sequence[float]) -> dict[str, float]:
    """The mean of two or more changes or differences, one for each seed, with Student's t interval and p."""
    value, error = mean(values), stdev(values) / math.sqrt(len(values))
    low, high = interval(values)
    p = 2 * float(t.sf(abs(value) / error, len(values) - 1)) if error > 0 else float(value == 0)
    return {"value": value, "low": low, "high": high, "p": p}


def tables_of(record: dict[str, Any]) -> dict[str, str]:
    """All tables by their titles; one without rows is empty."""
    rows, tests = rows_of(record["runs"]), tests_of(record["runs"])
    longest = tests[-1]

    def present(names: Sequence[str]) -> list[str]:
        return [name for name in names if name in rows]

    def figures(name: str, *measures: str, test: str = TEST) -> list[str]:
        return [figure([entry["tests"][test][measure] for entry in rows[name]]) for measure in measures]

    def parameters(name: str) -> str:
        return f"{rows[name][0]['config']['parameters']:,}"

    def seeds(name: str) -> str:
        return str(len(rows[name]))

    def by_length(measure: str) -> str:
        lines = [
            [name, *(figures(name, measure, test=test)[0] for test in tests), seeds(name)]
            for name in present([*PLAIN, BOTH, *DISTANCES, KEY, VALUE, PER_HEAD])
        ]
        return _table(["positions", *map(lengths_of, tests), "seeds"], lines)

    depths = [
        (layers, k, f"{shape}{relative(k)}")
        for layers, shape in ((1, "depth 1: "), (2, ""), (3, "depth 3: "))
        for k in (1, 4, 16)
    ]
    distances = present(DISTANCES)
    changes = [
        _text(over_seeds(values)) if len(values := _differences(rows, (now, before, longest), "perplexity")) > 1 else ""
        for before, now in pairwise(distances)
    ]
    return {
        "Positions": _table(
            ["positions", "BLEU", "chrF", "perplexity", "parameters", "seeds"],
            [
                [name, *figures(name, "bleu", "chrf", "perplexity"), parameters(name), seeds(name)]
                for name in present([*PLAIN, PAPER, PER_HEAD, BOTH])
            ],
        ),
        "Models shaped like base and big": _table(
            ["shape", "positions", "the paper's BLEU", "BLEU", "chrF", "perplexity", "parameters", "seeds"],
            [
                [*name.split(": "), str(papers), *figures(name, "bleu", "chrf", "perplexity"), parameters(name),
                 seeds(name)]
                for name, papers in PAPERS_SHAPES.items() if name in rows
            ],
        ),
        "Clipping distance": _table(
            ["k", "the paper's BLEU", "BLEU", "perplexity", "seeds"],
            [
                [_k(name) + (" (ours)" if PAPERS_DISTANCES[name] == "–" else ""), PAPERS_DISTANCES[name],
                 *figures(name, "bleu", "perplexity"), seeds(name)]
                for name in distances
            ],
        ),
        "Depth and clipping distance": _table(
            ["layers", "k", "BLEU", "perplexity", f"perplexity, {lengths_of(longest)}", "seeds"],
            [
                [str(layers), str(k), *figures(name, "bleu", "perplexity"), *figures(name, "perplexity", test=longest),
                 seeds(name)]
                for layers, k, name in depths if name in rows
            ],
        ),
        "Key and value tables": _table(
            ["key table", "value table", "the paper's BLEU", "BLEU", "perplexity", "seeds"],
            [
                [*about, *figures(name, "bleu", "perplexity"), seeds(name)]
                for name, about in PAPERS_TABLES.items() if name in rows
            ],
        ),
        "Longer sentences: perplexity": by_length("perplexity"),
        "Longer sentences: BLEU": by_length("bleu"),
        "Change of the validation loss in the last fifth of training": _table(
            ["positions", "nats", "seeds"],
            [
                [name, _text(over_seeds(late), ".3f"), seeds(name)]
                for name in present([*pictures.CURVES, SHORT]) if len(late := _late_changes(rows[name])) > 1
            ],
        ),
        "Differences": _table(
            ["first", "second", "sentences", "seeds", "BLEU", "p", "perplexity", "the first is"],
            [_difference(rows, claim, record["bootstrap"]) for claim in claims_of(rows)],
        ),
        "Perplexity of the longest sentences by clipping distance": _table(
            ["k", "perplexity", "minus the row above"],
            [
                [_k(name), *figures(name, "perplexity", test=longest), change]
                for name, change in zip(distances, ["", *changes], strict=False)
            ],
        ),
    }  # fmt: skip


def figure(values: Sequence[float]) -> str:
    """The mean, and of several values the sample standard deviation."""
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return ""
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *lines))


def _k(name: str) -> str:
    return name.rpartition(" = ")[2]


def _late_changes(runs: Sequence[Run]) -> list[float]:
    """For each run, the change from the last measurement before the last fifth of training to the last of all."""
    curves = [dict(entry["valid"]) for entry in runs]
    stop = max(curves[0])
    start = max((step for step in curves[0] if step <= 0.8 * stop), default=stop)
    return [curve[stop] - curve[start] for curve in curves if start < stop]


def _difference(rows: Rows, claim: Claim, bootstrap: Sequence[dict[str, Any]]) -> list[str]:
    """A difference between two rows, with its intervals."""
    one, other, test = claim
    stored = [found for found in bootstrap if (found["one"], found["other"], found["test"]) == claim]
    differences = _differences(rows, claim, "bleu")
    bleu = stored[0] if stored else over_seeds(differences)
    perplexity = over_seeds(_differences(rows, claim, "perplexity"))
    words = {1: "better", -1: "worse", 0: "undecided"}
    by_bleu, by_perplexity = words[_sign(bleu)], words[-_sign(perplexity)]
    return [
        one,
        other.rpartition(": ")[2],
        lengths_of(test),
        str(len(differences)),
        _text(bleu) + ("" if stored else " †"),
        "< 0.001" if bleu["p"] < 0.001 else f"{bleu['p']:.3f}",
        _text(perplexity),
        by_bleu if by_bleu == by_perplexity else f"{by_bleu} in BLEU, {by_perplexity} in perplexity",
    ]


def _sign(difference: dict[str, float]) -> int:
    """1 or -1 where the interval lies above or below 0, else 0."""
    return int(difference["low"] > 0) - int(difference["high"] < 0)


def _text(difference: dict[str, float], form: str = ".2f") -> str:
    """The difference with its interval; bold where the interval excludes 0."""
    value, low, high = (f"{difference[name]:+{form}}".replace("-", "−") for name in ("value", "low", "high"))
    return f"{f'**{value}**' if _sign(difference) else value} [{low}, {high}]"
