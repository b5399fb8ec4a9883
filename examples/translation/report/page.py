"""The page: a section for each table of the paper, for unseen lengths, and what they show, in Markdown."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from examples.translation.report.findings import findings, improving
from examples.translation.report.intervals import over_seeds
from examples.translation.report.markdown import count, every, table
from examples.translation.report.pictures import Picture
from examples.translation.report.record import RESULTS
from examples.translation.report.results import (
    BOTH,
    COMPARED,
    CURVES,
    KINDS,
    LEARNED,
    NONE,
    ONE_TABLE,
    PICTURED_DISTANCES,
    SINUSOIDAL,
    TEST,
    Sweep,
    Variant,
    lengths_of,
    range_of,
    relative,
)
from examples.translation.settings import ModelSettings, TrainingSettings
from examples.translation.sweep import OURS, PAPER, SHAPES, models

# the braces are filled in from the runs' settings
COMMANDS = """\
python -m examples.translation prepare data/pairs --train CORPUS --held-out {held_out} \\
    --vocabulary-size {vocabulary}{unseen}
{sweeps}
python -m examples.translation report runs/pairs --data data/pairs
"""
SWEEP = "python -m examples.translation sweep data/pairs runs/pairs --seeds {seeds}{only}{options}"
VERSIONS = ("python", "torch", "relgraph")

Rows = list[list[str]]


def write_page(sweep: Sweep, shapes: Sequence[Sweep], pictures: Sequence[Picture], link: str | None) -> str:
    """The whole page; ``link`` leads from it to the folder of the pictures."""

    def images(section: str) -> str:
        return "\n\n".join(f"![{p.alt}]({link}/{p.file})" for p in pictures if p.section == section)

    parts = [
        "# What relative positions change: small translation models",
        *_introduction(sweep, shapes, link),
        "## Positions",
        *_comparison(sweep),
        "### Models shaped like base and big",
        *_shapes(shapes),
        "## Clipping distance",
        *_by_distance(sweep),
        "## Key and value tables",
        *_by_table(sweep),
        "## Sentences longer than any in training",
        *_unseen_lengths(sweep),
        images("lengths"),
    ]
    parts += ["## Learning curves", _curves_text(sweep), images("curves"), *improving(sweep)]
    if link is not None:
        parts += ["## What the tables learned", _tables_text(bool(images("tables"))), images("tables")]
    parts += ["## What it shows", *findings(sweep, shapes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _introduction(sweep: Sweep, shapes: Sequence[Sweep], link: str | None) -> list[str]:
    seeds = sorted({len(group) for group in sweep.groups.values()})
    many = "one seed" if seeds == [1] else f"{' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seeds"
    spread = "which gives no spread" if seeds == [1] else "± the sample standard deviation"
    source = "" if link is None else f" ([{RESULTS}]({link}/{RESULTS}))"
    return [
        f"We train small Transformers to translate {sweep.data}. The models differ only in how they represent "
        "positions: not at all; by sinusoids or learned vectors, added to the embeddings; or by a vector for each "
        "clipped distance, as in [Shaw, Uszkoreit, Vaswani 2018](https://arxiv.org/abs/1803.02155). We trained each "
        f"model with {many}. A figure is the mean over seeds, {spread}. Every figure is computed from the "
        f"logs{source}.",
        "## Settings",
        _model_text(sweep),
        _training_text(sweep),
        _measuring_text(sweep),
        _assumed_text(sweep),
        sweep.note,
        "To repeat the experiment, run in the root of the repository:",
        f"```sh\n{COMMANDS.format(**_command_options(sweep, shapes))}```",
    ]


def _assumed_text(sweep: Sweep) -> str:
    assumed = {name for entry in sweep.runs for name in entry.get("assumed", ())}
    if not assumed:
        return ""
    names = ", ".join(f"`{name}`" for name in sorted(assumed))
    return f"Some runs were saved before the settings {names} existed. For them we assume the defaults."


def _model_text(sweep: Sweep) -> str:
    model = sweep.model
    return (
        f"**Model.** Encoder and decoder have {count(model['layers'], 'layer')} each, width {model['width']}, "
        f"{count(model['heads'], 'head')}, feed-forward width {model['hidden']}, dropout {model['dropout']:g}, and "
        f"norms {'before' if model['norm_first'] else 'after'} each step. "
        f"{'Each head has its own tables' if model['per_head'] else 'The heads share their tables'}. Both languages "
        f"share {sweep.sizes['vocabulary']:,} subwords."
    )


def _training_text(sweep: Sweep) -> str:
    training, configs = sweep.training, [entry["config"] for entry in sweep.runs]
    times = {
        "batches": every([training.get("accumulate", 1)]),
        "processes": every(c.get("processes", 1) for c in configs),
    }
    more = "".join(f" × {number} {what}" for what, number in times.items() if number != "1")
    pairs, devices = sweep.sizes["pairs"], every(config.get("device") for config in configs)
    versions = (f"{name} {every(config['versions'].get(name) for config in configs)}" for name in VERSIONS)
    return (
        f"**Training.** {training['steps']:,} steps of at most {training['batch_tokens']:,} tokens per side{more}"
        f"{f', from {pairs:,} pairs' if pairs else ''}; Adam with {training['warm_up']:,} steps of warm-up and rate "
        f"factor {training['learning_rate']:g}; label smoothing {training['smoothing']:g}; precision "
        f"{training['precision']}{f' on {devices}' if devices else ''}; {', '.join(versions)}."
    )


def _measuring_text(sweep: Sweep) -> str:
    tests = "; ".join(
        f"{lengths_of(name)}, {size['sentences']:,} sentences with {size['tokens']:,} subwords"
        for name, size in sweep.tests.items()
    )
    return (
        f"**Tests.** We test each run with {_averaged(sweep)}, a beam of {sweep.search['beam']} and a length penalty "
        f"of {sweep.search['length_penalty']:g}. The test sets, by words in the source sentence, are: {tests}. "
        "Perplexity is per subword. sacreBLEU computes BLEU and chrF "
        f"(BLEU `{sweep.tests[TEST]['signature']}`)."
    )


def _averaged(sweep: Sweep) -> str:
    """The checkpoints with which a run is tested."""
    averaged = [entry["averaged_steps"] for entry in sweep.runs]
    numbers, steps = {len(each) for each in averaged}, sorted(set().union(*averaged))
    if numbers == {1}:
        return f"its last checkpoint (step {every(steps)})"
    return f"the mean of its last {every(numbers)} checkpoints (steps {steps[0]:,} to {steps[-1]:,})"


def _command_options(sweep: Sweep, shapes: Sequence[Sweep]) -> dict[str, Any]:
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
    passed_on = " \\\n    -- " + " ".join(options) if options else ""
    ranges = [low_high for name in sweep.unseen if (low_high := range_of(name))]
    longer = " ".join(f"{low}-{high}" for low, high in ranges)
    sweeps = [
        SWEEP.format(seeds=seeds, only=only, options=passed_on) for seeds, only in _models_by_seeds([sweep, *shapes])
    ]
    return {
        "vocabulary": sweep.sizes["vocabulary"],
        "sweeps": "\n".join(sweeps),
        "held_out": sweep.tests[TEST]["sentences"],
        "unseen": f" --max-words {ranges[0][0] - 1} --unseen {longer}" if ranges else "",
    }


def _models_by_seeds(sweeps: Iterable[Sweep]) -> list[tuple[int, str]]:
    """Numbers of seeds, and the option that names the models with so many where these are not all."""
    runs = Counter(entry["name"].rsplit("-seed", 1)[0] for sweep in sweeps for entry in sweep.runs)
    every_model = [model.name for model in models()]
    found = []
    for seeds in sorted({*runs.values()}):
        names = [name for name in every_model if runs[name] == seeds]
        only = textwrap.wrap(f"--only {' '.join(names)}", 100)
        found.append((seeds, "" if names == every_model else "".join(f" \\\n    {line}" for line in only)))
    return found


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
        "The test sentences have trained lengths; k is the clipping distance. The paper's Table 1 compares sinusoidal "
        "with relative positions; we add the other rows. On WMT 2014 English–German, relative positions gained 0.3 "
        "BLEU (base) and 1.3 BLEU (big) over sinusoidal ones in the paper. Both together gained nothing more.",
        "Do not compare the training tokens per second: they are medians of the logs, and the machine did other work "
        "at the same time. To compare speeds, run `python -m examples.translation speed data/pairs`, which trains with "
        "relative and with sinusoidal positions in turn. The paper reports 7 % fewer steps per second.",
        table(["positions", "BLEU", "chrF", "perplexity", "training tokens/s", "parameters", "seeds"], rows),
        _missing(sweep, COMPARED),
    ]


def _shapes(shapes: Sequence[Sweep]) -> list[str]:
    """The paper's Table 1 by models with the proportions of its base and big models."""
    rows = [
        [
            str(sweep.shape),
            v.name,
            *(str(sweep.test(v, TEST, measure)) for measure in ("bleu", "chrf", "perplexity")),
            f"{sweep.groups[v][0]['config']['parameters']:,}",
            str(sweep.seeds(v)),
        ]
        for sweep in shapes
        for v in sorted(sweep.groups, key=lambda v: bool(v.tables))
    ]
    missing = [name for name in SHAPES if name not in [sweep.shape for sweep in shapes]]
    return [
        "These small models have the proportions of the paper's base and big models. Compare only rows of the same "
        "shape. " + " ".join(_shape_text(sweep) for sweep in shapes)
        if shapes
        else "",
        table(["shape", "positions", "BLEU", "chrF", "perplexity", "parameters", "seeds"], rows),
        f"Left out because no run has finished: {'; '.join(missing)}." if missing else "",
    ]


def _shape_text(sweep: Sweep) -> str:
    model = sweep.model
    return (
        f"*{sweep.shape}*: width {model['width']}, {count(model['heads'], 'head')}, feed-forward width "
        f"{model['hidden']}, dropout {model['dropout']:g}, tables for each layer"
        f"{' and head' if model['per_head'] else ', shared by its heads'}, tested with {_averaged(sweep)}."
    )


def _by_distance(sweep: Sweep) -> list[str]:
    """The paper's Table 2."""
    wanted = [relative(k) for k in sweep.distances]
    rows = [
        [
            f"{v.distance} (ours)" if v.distance in OURS else str(v.distance),
            *(str(sweep.test(v, TEST, m)) for m in ("bleu", "perplexity")),
            str(sweep.seeds(v)),
        ]
        for v in sweep.present(wanted)
    ]
    ours = ", ".join(f"k = {k}" for k in OURS)
    return [
        "As in the paper's Table 2, the models have relative positions with key and value tables, and the test "
        "sentences have trained lengths. With k = 0 every pair has the same label, so the model knows no positions. "
        f"The paper does not test {ours}. From k = 2 on, it saw only noise. Rows for distances that no training "
        "sentence has keep their random initial values. Models with large k differ in little else.",
        table(["k", "BLEU", "perplexity", "seeds"], rows),
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
        f"As in the paper's Table 3, the models have relative positions with k = {PAPER} and both tables, one of them, "
        "or none. The test sentences have trained lengths. Without tables the model knows no positions. In the paper, "
        "the key table without the value table does as well as both.",
        table(["key table", "value table", "BLEU", "perplexity", "seeds"], rows),
        _missing(sweep, wanted),
    ]


def _unseen_lengths(sweep: Sweep) -> list[str]:
    if not sweep.unseen:
        return ["No test set of longer sentences was measured."]
    wanted = [NONE, SINUSOIDAL, LEARNED, BOTH, *map(relative, sweep.distances), *ONE_TABLE]
    found = sweep.present(wanted) + [v for v in sweep.groups if v not in wanted]
    parts = [
        "Each column is a test set, by words in the source sentence. The best mean of a column is bold if the 95 % "
        "interval of its difference from every other row, over the seeds that both have, excludes 0. Learned positions "
        "beyond the longest training sentence were never trained: longer sentences use their random initial values."
    ]
    for title, measure, best in (("Perplexity", "perplexity", min), ("BLEU", "bleu", max)):
        columns = [[sweep.test(v, name, measure) for v in found] for name in sweep.tests]
        bold = [_clear_best(sweep, found, name, measure, best) for name in sweep.tests]
        cells = [
            [f"**{cell}**" if row == leader else str(cell) for row, cell in enumerate(column)]
            for column, leader in zip(columns, bold, strict=True)
        ]
        rows = [[v.name, *row, str(sweep.seeds(v))] for v, row in zip(found, zip(*cells, strict=True), strict=True)]
        parts += [f"{title}:", table(["positions", *map(lengths_of, sweep.tests), "seeds"], rows)]
    return [*parts, _missing(sweep, wanted)]


def _clear_best(
    sweep: Sweep, rows: Sequence[Variant], test: str, measure: str, best: Callable[..., Variant]
) -> int | None:
    """Which row leads every other by more than chance; None where that cannot be said."""
    if len(rows) < 2:
        return None
    first = best(rows, key=lambda row: sweep.test(row, test, measure).mean)
    others = [row for row in rows if row != first]
    clear = all(
        sweep.compare(first, row) and over_seeds(sweep.differences(first, row, test, measure)).sign for row in others
    )
    return rows.index(first) if clear else None


def _curves_text(sweep: Sweep) -> str:
    text = (
        "The curves show the negative log-likelihood of the validation set, in nats per subword: mean and range over "
        "seeds."
    )
    return " ".join(filter(None, [text if sweep.present(CURVES) else "", _missing(sweep, CURVES)]))


def _tables_text(has_pictures: bool) -> str:
    if not has_pictures:
        wanted = " or ".join(f"k = {distance}" for distance in PICTURED_DISTANCES)
        return f"No picture: no finished run of relative, {wanted}, has its averaged model."
    return (
        "The pictures show the lengths of the rows (mean and range over seeds; mean over heads, if each head has its "
        "own rows) and the cosine of every two rows (mean over seeds). The first and last row also serve all distances "
        "beyond them. The pictures of the decoder omit distances above 0: a target sees nothing to its right, so "
        "it never uses those rows. Rows for distances that no training sentence has keep their random initial values."
    )


def _missing(sweep: Sweep, wanted: Iterable[Variant]) -> str:
    names = [v.name for v in wanted if v not in sweep.groups]
    return f"Left out because no run has finished: {'; '.join(names)}." if names else ""
