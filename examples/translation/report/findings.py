"""What a sweep shows: its differences with their intervals, and whether the models had stopped improving."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from examples.translation.report.intervals import RESAMPLES, Difference, over_seeds
from examples.translation.report.markdown import signed, table, with_interval
from examples.translation.report.results import (
    CLIPPED_SHORT,
    CURVES,
    SINUSOIDAL,
    Claim,
    Sweep,
    Variant,
    lengths_of,
    relative,
)

SEEDS_ONLY = "†"


def findings(sweep: Sweep, shapes: Iterable[Sweep]) -> list[str]:
    """Every difference that the page claims, with its interval."""
    claims = [(each, claim) for each in (sweep, *shapes) for claim in each.claims()]
    bleus = [each.difference(*claim, "bleu") for each, claim in claims]
    rows = [_row(each, claim, bleu) for (each, claim), bleu in zip(claims, bleus, strict=True)]
    header = ["first", "second", "sentences", "seeds", "BLEU", "p", "perplexity", "the first is"]
    return [_how_to_read(bleus), table(header, rows), *_longest_by_distance(sweep)]


def _how_to_read(bleus: Sequence[Difference]) -> str:
    parts = [
        "A difference is the first row minus the second, with its 95 % interval in brackets. It is bold if the "
        "interval excludes 0, and undecided otherwise. Higher BLEU and lower perplexity are better. Runs with the same "
        "seed see the sentences in the same order. So a difference is the mean over the seeds that both rows have, "
        "which may differ a little from the difference of the means above."
    ]
    if any(found.sentences for found in bleus):
        parts.append(
            "The intervals of BLEU come from a paired bootstrap, which draws the test sentences and the seeds again "
            f"{RESAMPLES:,} times, the same sentences for both rows. We compute its p as in sacreBLEU's paired "
            "bootstrap test, which counts one tail of a clear difference. If p and the interval seem to disagree, the "
            "interval decides. With few seeds these intervals are somewhat too narrow."
        )
    if any(found.some_kept for found in bleus):
        parts.append(
            "The translations of some runs were not kept. These runs count as seeds, and the other runs of their row "
            "show how much the sentences vary."
        )
    by_seeds = "The intervals of perplexity are Student's t intervals over seeds"
    if any(found.low is not None and not found.sentences for found in bleus):
        by_seeds += f", and so are the BLEU intervals marked {SEEDS_ONLY} (and their p), of rows without translations"
    parts += [
        f"{by_seeds}.",
        "We do not correct for the number of differences: if there is none, one interval in twenty excludes 0 by "
        "chance.",
    ]
    return "\n\n".join([parts[0], " ".join(parts[1:])])


def _row(sweep: Sweep, claim: Claim, bleu: Difference) -> list[str]:
    one, other, test = claim
    perplexity = sweep.difference(*claim, "perplexity")
    mark = "" if bleu.sentences or bleu.low is None else f" {SEEDS_ONLY}"
    shape = "" if sweep.shape is None else f"{sweep.shape}: "
    return [
        f"{shape}{one.name}",
        other.name,
        lengths_of(test),
        str(len(sweep.differences(*claim, "bleu"))),
        with_interval(bleu) + mark,
        _p(bleu.p),
        with_interval(perplexity),
        _verdict(bleu, perplexity),
    ]


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _verdict(bleu: Difference, perplexity: Difference) -> str:
    """Which row is better, as far as the intervals say."""
    if bleu.low is None or perplexity.low is None:
        return "undecided (one seed)"
    words = {1: "better", -1: "worse", 0: "undecided"}
    by_bleu, by_perplexity = words[bleu.sign], words[-perplexity.sign]
    if by_bleu == by_perplexity:
        return by_bleu
    return f"{by_bleu} in BLEU, {by_perplexity} in perplexity"


def _longest_by_distance(sweep: Sweep) -> list[str]:
    """How perplexity on the longest sentences goes with the clipping distance."""
    found = sweep.present(map(relative, sweep.distances))
    if not sweep.unseen or len(found) < 2:
        return []
    longest = sweep.unseen[-1]
    cells = {v.distance: sweep.test(v, longest, "perplexity") for v in found}
    changes = [
        with_interval(sweep.difference(now, before, longest, "perplexity")) if sweep.compare(now, before) else ""
        for before, now in pairwise(found)
    ]
    shown = zip(cells.items(), ["", *changes], strict=True)
    rows = [[str(distance), str(cell), change] for (distance, cell), change in shown]
    lowest = min(cells, key=lambda distance: cells[distance].mean)
    return [
        f"The last table shows perplexity by clipping distance on sentences of {lengths_of(longest)}, and the "
        f"difference from the row above, over the seeds that both have. k = {lowest} has the lowest mean.",
        table(["k", "perplexity", "minus the row above"], rows),
    ]


def improving(sweep: Sweep) -> list[str]:
    """Whether the rows were still improving when training ended."""
    rows = {v: _late_change(sweep, v) for v in sweep.present((*CURVES, CLIPPED_SHORT))}
    late = {v: found for v, found in rows.items() if found is not None}
    if not late:
        return []
    start, stop = _last_fifth(sweep, next(iter(late)))
    cells = [[v.name, with_interval(found, ".3f"), str(sweep.seeds(v))] for v, found in late.items()]
    return [
        f"The table shows how this loss changed over the last fifth of training, from step {start:,} to step "
        f"{stop:,}, with its 95 % interval over seeds. {_said(late)}",
        table(["positions", "nats", "seeds"], cells),
    ]


def _last_fifth(sweep: Sweep, variant: Variant) -> tuple[int, int]:
    """Steps of two measurements: the last before the last fifth of training, and the last of all."""
    steps = [step for step, _ in sweep.groups[variant][0]["valid"]]
    return max((step for step in steps if step <= 0.8 * steps[-1]), default=steps[-1]), steps[-1]


def _late_change(sweep: Sweep, variant: Variant) -> Difference | None:
    start, stop = _last_fifth(sweep, variant)
    if start == stop:
        return None
    curves = [dict(entry["valid"]) for entry in sweep.groups[variant]]
    return over_seeds([curve[stop] - curve[start] for curve in curves])


def _said(late: dict[Variant, Difference]) -> str:
    by_sign = {sign: [v.name for v, found in late.items() if found.sign == sign] for sign in (-1, 0, 1)}
    parts = [
        ("Still improving when training ended", by_sign[-1]),
        ("Undecided", by_sign[0]),
        ("Getting worse", by_sign[1]),
    ]
    text = " ".join(f"{what}: {'; '.join(names)}." for what, names in parts if names)
    if SINUSOIDAL not in late:
        return text
    change = signed(late[SINUSOIDAL].value, ".3f")
    if late[SINUSOIDAL].sign == -1:
        return (
            f"{text} So the training was too short for *sinusoidal* to stop improving ({change} nats). The tables "
            "compare the models after the same number of steps, not at their best."
        )
    return f"{text} The loss of *sinusoidal* changed by {change} nats, which these seeds cannot tell from 0."
