"""The tables of a sweep in Markdown: one for each table of the paper, for unseen lengths, and of all differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from examples.translation.report.figures import Difference, over_seeds
from examples.translation.report.results import (
    BOTH,
    CLIPPED_SHORT,
    COMPARED,
    CURVES,
    KINDS,
    NONE,
    ONE_TABLE,
    TEST,
    Claim,
    Sweep,
    Variant,
    lengths_of,
    relative,
)
from examples.translation.sweep import DEPTH_DISTANCES, DEPTHS, OURS, PAPER, SHAPES

SEEDS_ONLY = "†"

# BLEU of the paper: its Table 1 for English to German, without and with relative positions, and its Tables 2 and 3

PAPER_SHAPES = {"base": (26.5, 26.8), "big": (27.9, 29.2)}
PAPER_DISTANCES = {0: 12.5, 1: 25.5, 2: 25.8, 4: 25.9, 16: 25.8, 64: 25.9, 256: 25.8}
PAPER_TABLES = {("key", "value"): 25.8, ("key",): 25.8, ("value",): 25.3, (): 12.5}
PAPERS = "the paper's BLEU"


def as_markdown(sweep: Sweep, shapes: Sequence[Sweep]) -> str:
    """All tables, each under a heading; those without rows are left out.

    A figure is the mean over seeds, ± the sample standard deviation. A difference is the mean over the seeds that both
    rows have. Its interval comes from a paired bootstrap over seeds and sentences, or is Student's over seeds (†, and
    that of perplexity).
    """
    tables = {
        "Positions": _by_positions(sweep),
        "Models shaped like base and big": _by_shape([each for each in shapes if each.shape in SHAPES]),
        "Clipping distance": _by_distance(sweep),
        "Depth and clipping distance": _by_depth([sweep, *(each for each in shapes if each.shape in DEPTHS)]),
        "Key and value tables": _by_table(sweep),
        "Longer sentences: perplexity": _by_length(sweep, "perplexity", min),
        "Longer sentences: BLEU": _by_length(sweep, "bleu", max),
        "Change of the validation loss in the last fifth of training": _late_changes(sweep),
        "Differences": _differences([sweep, *shapes]),
        "Perplexity of the longest sentences by clipping distance": _longest_by_distance(sweep),
    }
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in tables.items() if text) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))


def _cells(sweep: Sweep, row: Variant, *measures: str) -> list[str]:
    return [str(sweep.test(row, TEST, measure)) for measure in measures]


def _seeds(sweep: Sweep, row: Variant) -> str:
    return str(len(sweep.groups[row]))


def _parameters(sweep: Sweep, row: Variant) -> str:
    return f"{sweep.groups[row][0]['config']['parameters']:,}"


def _by_positions(sweep: Sweep) -> str:
    """The paper's Table 1."""
    rows = [
        [v.name, *_cells(sweep, v, "bleu", "chrf", "perplexity"), _parameters(sweep, v), _seeds(sweep, v)]
        for v in sweep.present(COMPARED)
    ]
    return _table(["positions", "BLEU", "chrF", "perplexity", "parameters", "seeds"], rows)


def _by_shape(shapes: Sequence[Sweep]) -> str:
    """The paper's Table 1 by models with the proportions of its base and big models."""
    rows = [
        [
            str(each.shape),
            v.name,
            str(PAPER_SHAPES[str(each.shape)][bool(v.tables)]),
            *_cells(each, v, "bleu", "chrf", "perplexity"),
            _parameters(each, v),
            _seeds(each, v),
        ]
        for each in shapes
        for v in sorted(each.groups, key=lambda v: bool(v.tables))
    ]
    return _table(["shape", "positions", PAPERS, "BLEU", "chrF", "perplexity", "parameters", "seeds"], rows)


def _by_distance(sweep: Sweep) -> str:
    """The paper's Table 2."""
    rows = [
        [
            f"{v.distance}{' (ours)' if v.distance in OURS else ''}",
            str(PAPER_DISTANCES.get(v.distance, "–")),
            *_cells(sweep, v, "bleu", "perplexity"),
            _seeds(sweep, v),
        ]
        for v in sweep.present(map(relative, sweep.distances))
    ]
    return _table(["k", PAPERS, "BLEU", "perplexity", "seeds"], rows)


def _by_depth(sweeps: Sequence[Sweep]) -> str:
    """Models of other depth, with the same clipping distances of the usual depth between them."""
    if len(sweeps) < 2:
        return ""
    rows = []
    for each in sorted(sweeps, key=_layers):
        for v in each.present(relative(k) for k in DEPTH_DISTANCES):
            cells = _cells(each, v, "bleu", "perplexity")
            cells += [str(each.test(v, name, "perplexity")) for name in each.unseen[-1:]]
            rows.append([str(_layers(each)), str(v.distance), *cells, _seeds(each, v)])
    longest = [f"perplexity, {lengths_of(name)}" for name in sweeps[0].unseen[-1:]]
    return _table(["layers", "k", "BLEU", "perplexity", *longest, "seeds"], rows)


def _layers(sweep: Sweep) -> int:
    return next(iter(sweep.groups.values()))[0]["config"]["model"]["layers"]


def _by_table(sweep: Sweep) -> str:
    """The paper's Table 3."""
    rows = [
        [
            *("yes" if kind in v.tables else "no" for kind in KINDS),
            str(PAPER_TABLES[v.tables]),
            *_cells(sweep, v, "bleu", "perplexity"),
            _seeds(sweep, v),
        ]
        for v in sweep.present((relative(PAPER), *ONE_TABLE, NONE))
    ]
    return _table(["key table", "value table", PAPERS, "BLEU", "perplexity", "seeds"], rows)


def _by_length(sweep: Sweep, measure: str, best: Callable[..., Variant]) -> str:
    """A column for each test set; the best mean of a column is bold if it leads by more than chance."""
    if not sweep.unseen:
        return ""
    others = [v for v in COMPARED if not v.tables]
    wanted = [*others, BOTH, *map(relative, sweep.distances), *ONE_TABLE]
    found = sweep.present(wanted) + [v for v in sweep.groups if v not in wanted]
    leaders = {name: _clear_best(sweep, found, name, measure, best) for name in sweep.tests}
    rows = []
    for v in found:
        cells = {name: str(sweep.test(v, name, measure)) for name in sweep.tests}
        bold = [f"**{cell}**" if leaders[name] == v else cell for name, cell in cells.items()]
        rows.append([v.name, *bold, _seeds(sweep, v)])
    return _table(["positions", *map(lengths_of, sweep.tests), "seeds"], rows)


def _clear_best(
    sweep: Sweep, rows: Sequence[Variant], test: str, measure: str, best: Callable[..., Variant]
) -> Variant | None:
    """The row whose difference from every other has an interval without 0."""
    first = best(rows, key=lambda row: sweep.test(row, test, measure).mean)
    others = [row for row in rows if row != first]
    clear = all(
        sweep.compare(first, row) and over_seeds(sweep.differences(first, row, test, measure)).sign for row in others
    )
    return first if clear and others else None


def _late_changes(sweep: Sweep) -> str:
    """Whether the rows were still improving when training ended."""
    late = {v: found for v in sweep.present((*CURVES, CLIPPED_SHORT)) if (found := _late_change(sweep, v))}
    return _table(["positions", "nats", "seeds"], [[v.name, f.text(".3f"), _seeds(sweep, v)] for v, f in late.items()])


def _late_change(sweep: Sweep, row: Variant) -> Difference | None:
    """The change from the last measurement before the last fifth of training to the last of all."""
    curves = [dict(entry["valid"]) for entry in sweep.groups[row]]
    stop = max(curves[0])
    start = max((step for step in curves[0] if step <= 0.8 * stop), default=stop)
    return None if start == stop else over_seeds([curve[stop] - curve[start] for curve in curves])


def _differences(sweeps: Iterable[Sweep]) -> str:
    """Every difference between two rows, with its interval."""
    header = ["first", "second", "sentences", "seeds", "BLEU", "p", "perplexity", "the first is"]
    return _table(header, [_difference(each, claim) for each in sweeps for claim in each.claims()])


def _difference(sweep: Sweep, claim: Claim) -> list[str]:
    one, other, test = claim
    bleu, perplexity = (sweep.difference(*claim, measure) for measure in ("bleu", "perplexity"))
    return [
        one.name if sweep.shape is None else f"{sweep.shape}: {one.name}",
        other.name,
        lengths_of(test),
        str(len(sweep.differences(*claim, "bleu"))),
        bleu.text() + ("" if bleu.sentences or bleu.low is None else f" {SEEDS_ONLY}"),
        "" if bleu.p is None else "< 0.001" if bleu.p < 0.001 else f"{bleu.p:.3f}",
        perplexity.text(),
        _verdict(bleu, perplexity),
    ]


def _verdict(bleu: Difference, perplexity: Difference) -> str:
    """Which row is better, as far as the intervals say."""
    if bleu.low is None or perplexity.low is None:
        return "undecided (one seed)"
    words = {1: "better", -1: "worse", 0: "undecided"}
    by_bleu, by_perplexity = words[bleu.sign], words[-perplexity.sign]
    if by_bleu == by_perplexity:
        return by_bleu
    return f"{by_bleu} in BLEU, {by_perplexity} in perplexity"


def _longest_by_distance(sweep: Sweep) -> str:
    """How perplexity on the longest sentences depends on the clipping distance."""
    found = sweep.present(map(relative, sweep.distances))
    if not sweep.unseen or len(found) < 2:
        return ""
    longest = sweep.unseen[-1]
    changes = [
        sweep.difference(now, before, longest, "perplexity").text() if sweep.compare(now, before) else ""
        for before, now in pairwise(found)
    ]
    rows = [
        [str(v.distance), str(sweep.test(v, longest, "perplexity")), change]
        for v, change in zip(found, ["", *changes], strict=True)
    ]
    return _table(["k", "perplexity", "minus the row above"], rows)
