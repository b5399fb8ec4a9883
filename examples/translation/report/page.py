"""The page: a section for each table of the paper, for unseen lengths, and what they show, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from examples.translation.report.pictures import Picture
from examples.translation.report.record import RESULTS
from examples.translation.report.results import (
    BOTH,
    COMPARED,
    CURVES,
    KINDS,
    NONE,
    ONE_TABLE,
    PICTURED_DISTANCES,
    SINUSOIDAL,
    TEST,
    Spread,
    Sweep,
    Variant,
    as_figure,
    lengths_of,
    range_of,
    relative,
)
from examples.translation.settings import ModelSettings, TrainingSettings
from examples.translation.sweep import PAPER

# the braces are filled in from the runs' settings
COMMANDS = """\
python -m examples.translation prepare data/pairs --train CORPUS --held-out {held_out} \\
    --vocabulary-size {vocabulary}{unseen}
python -m examples.translation sweep data/pairs runs/pairs --seeds {seeds}{options}
python -m examples.translation report runs/pairs
"""
VERSIONS = ("python", "torch", "relgraph")

Rows = list[list[str]]


def write_page(sweep: Sweep, pictures: Sequence[Picture], link: str | None) -> str:
    """The whole page; ``link`` leads from it to the folder of the pictures."""

    def images(section: str) -> str:
        return "\n\n".join(f"![{p.alt}]({link}/{p.file})" for p in pictures if p.section == section)

    parts = [
        "# What relative positions change: small translation models",
        *_introduction(sweep, link),
        "## Positions",
        *_comparison(sweep),
        "## Clipping distance",
        *_by_distance(sweep),
        "## Key and value tables",
        *_by_table(sweep),
        "## Sentences longer than any in training",
        *_unseen_lengths(sweep),
        images("lengths"),
    ]
    if link is not None:
        parts += ["## Learning curves", _curves_text(sweep), images("curves")]
        parts += ["## What the tables learned", _tables_text(bool(images("tables"))), images("tables")]
    parts += ["## What it shows", *_findings(sweep)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _introduction(sweep: Sweep, link: str | None) -> list[str]:
    seeds = sorted({len(group) for group in sweep.groups.values()})
    many = "one seed" if seeds == [1] else f"{' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seeds"
    spread = "which gives no spread" if seeds == [1] else "± the sample standard deviation over seeds"
    source = "" if link is None else f" ([{RESULTS}]({link}/{RESULTS}))"
    return [
        f"Transformers that translate {sweep.data}, alike in everything but what their attention knows of positions: "
        "nothing, sinusoids added to the embeddings, or a vector for each clipped distance, as in "
        "[Shaw, Uszkoreit, Vaswani 2018](https://arxiv.org/abs/1803.02155). Each was trained with "
        f"{many}; a figure is the mean over seeds, {spread}. Every figure is computed from the logs{source}.",
        "## Settings",
        f"{_model_text(sweep)} {_training_text(sweep)} {_measuring_text(sweep)}",
        sweep.note,
        "To repeat it, from the root of the repository:",
        f"```sh\n{COMMANDS.format(**_command_options(sweep))}```",
    ]


def _model_text(sweep: Sweep) -> str:
    model = sweep.model
    return (
        f"Encoder and decoder of {_count(model['layers'], 'layer')} each, width {model['width']}, "
        f"{_count(model['heads'], 'head')}, feed-forward width {model['hidden']}, dropout {model['dropout']:g}, norms "
        f"{'before' if model['norm_first'] else 'after'} each step, rows of tables "
        f"{'for each head' if model['per_head'] else 'shared by the heads'}; "
        f"{sweep.sizes['vocabulary']:,} subwords, shared by both languages."
    )


def _training_text(sweep: Sweep) -> str:
    training, configs = sweep.training, [entry["config"] for entry in sweep.runs]
    times = {
        "batches": _all([training.get("accumulate", 1)]),
        "processes": _all(c.get("processes", 1) for c in configs),
    }
    more = "".join(f" × {number} {what}" for what, number in times.items() if number != "1")
    pairs, devices = sweep.sizes["pairs"], _all(config.get("device") for config in configs)
    versions = (f"{name} {_all(config['versions'].get(name) for config in configs)}" for name in VERSIONS)
    return (
        f"{training['steps']:,} steps of at most {training['batch_tokens']:,} tokens on either side{more}"
        f"{f', out of {pairs:,} pairs' if pairs else ''}; Adam, {training['warm_up']:,} steps of warm-up, rate "
        f"factor {training['learning_rate']:g}, label smoothing {training['smoothing']:g}, precision "
        f"{training['precision']}{f' on {devices}' if devices else ''}; {', '.join(versions)}."
    )


def _measuring_text(sweep: Sweep) -> str:
    averaged = [entry["averaged_steps"] for entry in sweep.runs]
    steps = sorted(set().union(*averaged))
    tests = "; ".join(
        f"{lengths_of(name)}, {size['sentences']:,} sentences with {size['tokens']:,} subwords"
        for name, size in sweep.tests.items()
    )
    return (
        f"Measured is the mean of {_all(map(len, averaged))} checkpoints of each run (steps "
        f"{steps[0]:,} to {steps[-1]:,}), with a beam of {sweep.search['beam']} and a length penalty of "
        f"{sweep.search['length_penalty']:g}. Tests by words in the source sentence: {tests}. Perplexity is that of a "
        f"subword. BLEU and chrF are sacreBLEU's (BLEU `{sweep.tests[TEST]['signature']}`)."
    )


def _command_options(sweep: Sweep) -> dict[str, Any]:
    """What the commands need to make these runs: all settings that are not what they are by default."""
    defaults = {**vars(ModelSettings()), **vars(TrainingSettings())}
    options = []
    for name, value in {**sweep.model, **sweep.training}.items():
        option = name.replace("_", "-")
        if value == defaults.get(name):
            continue
        if isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        else:
            options.append(f"--{option} {value}")
    ranges = [low_high for name in sweep.unseen if (low_high := range_of(name))]
    longer = " ".join(f"{low}-{high}" for low, high in ranges)
    return {
        "vocabulary": sweep.sizes["vocabulary"],
        "seeds": max(len(group) for group in sweep.groups.values()),
        "options": " \\\n    -- " + " ".join(options) if options else "",
        "held_out": sweep.tests[TEST]["sentences"],
        "unseen": f" --max-words {ranges[0][0] - 1} --unseen {longer}" if ranges else "",
    }


def _comparison(sweep: Sweep) -> list[str]:
    """The paper's Table 1."""
    found = sweep.present(COMPARED)
    rows = [
        [
            v.name,
            *(str(sweep.test(v, TEST, measure)) for measure in ("bleu", "chrf", "perplexity")),
            str(sweep.speed(v)),
            f"{sweep.groups[v][0]['config']['parameters']:,}",
            str(sweep.seeds(v)),
        ]
        for v in found
    ]
    return [
        "On sentences of trained lengths; k is the clipping distance. Target tokens a second are the medians of the "
        "logs, with whatever else the machine did at the time. The paper (WMT 2014 English–German, big model) gained "
        "1.3 BLEU with relative over sinusoidal positions, and nothing more with both.",
        _table(["positions", "BLEU", "chrF", "perplexity", "training tokens/s", "parameters", "seeds"], rows),
        _missing(sweep, COMPARED),
    ]


def _by_distance(sweep: Sweep) -> list[str]:
    """The paper's Table 2."""
    wanted = [relative(k) for k in sweep.distances]
    rows = [
        [str(v.distance), *(str(sweep.test(v, TEST, m)) for m in ("bleu", "perplexity")), str(sweep.seeds(v))]
        for v in sweep.present(wanted)
    ]
    return [
        "Relative positions with key and value tables, on sentences of trained lengths. With k = 0 every pair carries "
        "the same label, which says nothing of positions. The paper saw no more than noise from k = 2 on.",
        _table(["k", "BLEU", "perplexity", "seeds"], rows),
        _missing(sweep, wanted),
    ]


def _by_table(sweep: Sweep) -> list[str]:
    """The paper's Table 3."""
    wanted = (relative(PAPER), *ONE_TABLE, NONE)
    rows = [
        [
            *("yes" if kind in v.tables else "no" for kind in KINDS),
            *(str(sweep.test(v, TEST, m)) for m in ("bleu", "perplexity")),
            str(sweep.seeds(v)),
        ]
        for v in sweep.present(wanted)
    ]
    return [
        f"Relative positions with k = {PAPER} and either table left out, on sentences of trained lengths. Without both "
        "attention is told nothing of positions. The paper found the key table alone to do as well as both.",
        _table(["key table", "value table", "BLEU", "perplexity", "seeds"], rows),
        _missing(sweep, wanted),
    ]


def _unseen_lengths(sweep: Sweep) -> list[str]:
    if not sweep.unseen:
        return ["No test set of longer sentences was measured."]
    wanted = [NONE, SINUSOIDAL, BOTH, *map(relative, sweep.distances), *ONE_TABLE]
    found = sweep.present(wanted) + [v for v in sweep.groups if v not in wanted]
    parts = [
        "Test sets by words in the source sentence. The best mean of a column is bold where it leads the next by more "
        "than the larger of the two spreads."
    ]
    for title, measure, best in (("Perplexity", "perplexity", min), ("BLEU", "bleu", max)):
        columns = [[sweep.test(v, name, measure) for v in found] for name in sweep.tests]
        bold = [_clear_best(column, best) for column in columns]
        cells = [
            [f"**{cell}**" if row == leader else str(cell) for row, cell in enumerate(column)]
            for column, leader in zip(columns, bold, strict=True)
        ]
        rows = [[v.name, *row] for v, row in zip(found, zip(*cells, strict=True), strict=True)]
        parts += [f"{title}:", _table(["positions", *map(lengths_of, sweep.tests)], rows)]
    return [*parts, _missing(sweep, wanted)]


def _clear_best(column: Sequence[Spread], best: Callable[..., int]) -> int | None:
    """Which entry leads the next best by more than the spread of either; None where that cannot be said."""
    ranked = list(range(len(column)))
    if len(column) < 2 or not all(math.isfinite(cell.mean) for cell in column):
        return None
    first = best(ranked, key=lambda row: column[row].mean)
    second = best((row for row in ranked if row != first), key=lambda row: column[row].mean)
    spreads = (column[first].spread, column[second].spread)
    if None in spreads or abs(column[first].mean - column[second].mean) <= max(spreads):
        return None
    return first


def _curves_text(sweep: Sweep) -> str:
    text = "Negative log-likelihood of the validation set, in nats for each subword: mean and range over seeds."
    return " ".join(filter(None, [text if sweep.present(CURVES) else "", _missing(sweep, CURVES)]))


def _tables_text(drawn: bool) -> str:
    if not drawn:
        wanted = " or ".join(f"k = {distance}" for distance in PICTURED_DISTANCES)
        return f"No picture: no finished run of relative, {wanted}, has its averaged model."
    return (
        "Lengths of the rows, mean and range over seeds (the mean over heads, where each has rows of its own), and the "
        "cosines of every two rows, mean over seeds. The outermost rows stand for all distances beyond them as well. "
        "Distances above 0 are left out for the decoder: a target sees nothing to its right, so that those rows are "
        "never used. Rows of distances that no training sentence reaches stay as they were drawn."
    )


def _findings(sweep: Sweep) -> list[str]:
    """Differences of means, said by one rule."""
    paper = relative(PAPER)
    pairs = [
        (paper, NONE, TEST),
        (paper, SINUSOIDAL, TEST),
        (BOTH, paper, TEST),
        *((relative(k), paper, TEST) for k in sweep.distances if k != PAPER),
        *((one, paper, TEST) for one in ONE_TABLE),
        *((one, other, name) for name in sweep.unseen[-1:] for one, other in ((paper, SINUSOIDAL), (BOTH, paper))),
    ]
    found = [pair for pair in pairs if pair[0] in sweep.groups and pair[1] in sweep.groups]
    lines = [_compared(sweep, *pair) for pair in found] + [_longest_by_distance(sweep)]
    left_out = len(found) < len(pairs)
    return [
        "Differences of means, the first less the second. Their ± is the root of the two squared spreads' sum; a "
        "difference no larger than that is within the spread, which is a help in reading and no test of significance. "
        "Higher BLEU and lower perplexity are better.",
        "\n".join(f"- {line}" for line in lines if line),
        "Comparisons with models that have no finished run are left out." if left_out else "",
    ]


def _compared(sweep: Sweep, one: Variant, other: Variant, test: str) -> str:
    differences = [
        _difference(sweep.test(one, test, measure), sweep.test(other, test, measure), unit)
        for measure, unit in (("bleu", "BLEU"), ("perplexity", "perplexity"))
    ]
    return f"*{one.name}* less *{other.name}*, {lengths_of(test)}: {'; '.join(differences)}."


def _difference(one: Spread, other: Spread, unit: str = "") -> str:
    change = one.mean - other.mean
    text = f"{_signed(change)} {unit}".rstrip()
    if one.spread is None or other.spread is None:
        return f"{text} (one seed, no spread)"
    spread = math.hypot(one.spread, other.spread)
    return f"{text} ± {as_figure(spread)}, {'beyond' if abs(change) > spread else 'within'} the spread"


def _longest_by_distance(sweep: Sweep) -> str:
    """How perplexity on the longest sentences goes with the clipping distance."""
    found = sweep.present(map(relative, sweep.distances))
    if not sweep.unseen or len(found) < 2:
        return ""
    cells = {v.distance: sweep.test(v, sweep.unseen[-1], "perplexity") for v in found}
    changes = [f"from k = {a} to {b} {_difference(cells[b], cells[a])}" for a, b in pairwise(cells)]
    lowest = min(cells, key=lambda distance: cells[distance].mean)
    return (
        f"Perplexity by clipping distance, {lengths_of(sweep.unseen[-1])}: {'; '.join(changes)}. "
        f"The lowest mean is that of k = {lowest}, {cells[lowest]}."
    )


def _table(header: Sequence[str], rows: Rows) -> str:
    if not rows:
        return ""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _missing(sweep: Sweep, wanted: Iterable[Variant]) -> str:
    names = [v.name for v in wanted if v not in sweep.groups]
    return f"Left out, without a finished run: {'; '.join(names)}." if names else ""


def _all(values: Iterable[Any]) -> str:
    """Every different value, in order."""
    shown = {f"{value:,}" if isinstance(value, int) else str(value) for value in values if value is not None}
    return " and ".join(sorted(shown))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _signed(value: float) -> str:
    return ("−" if value < 0 else "+") + as_figure(abs(value))
