"""A budget of errors: how far a result in a lower precision may be from float64.

For each output and each gradient the budget is a norm, the sum of

- twice the error of ``reference`` in the same dtype,
- some units in the last place of the result, as it is rounded when it is stored,
- some times what one rounding of every input and every score does to it. This is the size of the terms that cancel:
  the gradient of a bias is a sum over scores that can be 0 where its terms are not, and then its error is theirs.

The last term is measured: random relative errors of one unit in the last place, in float64. All terms are random, and
which roundings meet differs from processor to processor; so squares are averaged over several draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from tests.cases import Case, answer, attention_weights, make

ROUNDINGS = 4
"""How often a score is rounded on its way: the product, the table's entry, the exponential, the division."""

Answer = tuple[list[Tensor], list[Tensor]]


def twins(labels, dtype=torch.float32, **options) -> tuple[Case, Case]:
    """Make a case in float64 and the same one in a lower precision, with the same values."""
    exact, low = make(labels, **options), make(labels, **options, dtype=dtype)
    for a, b in zip(low.leaves, exact.leaves, strict=True):
        a.data.copy_(b.data)
        b.data.copy_(a.data)
    return exact, low


def assert_within_budget(
    draws: Iterable[tuple[Case, Case]],
    found: Callable[[Case], Answer],
    *,
    keep: Tensor | None = None,
    mass: bool = True,
    ulps: float = 1.0,
    weights: torch.dtype = torch.float32,
    roundings: int = 1,
) -> None:
    """The errors of ``found(low)``, averaged over the draws, are within the budget.

    Args:
        draws: twins, alike but for their numbers.
        found: outputs and gradients of the low one.
        keep: a given dropout mask, in float64.
        mass: whether label masses are among the outputs.
        ulps: units in the last place by which a result may be off.
        weights: what attention weights are rounded to before they are multiplied.
        roundings: in how many random ways each draw is rounded.
    """
    squares: dict[tuple[str, int], list[float]] = {}
    unit = 0.0
    for exact, low in draws:
        dtype = low.inputs[0].dtype
        unit = torch.finfo(dtype).eps * ulps
        truth = answer(exact, "reference", keep=keep, mass=mass)
        ours = found(low)
        theirs = answer(low, "reference", keep=None if keep is None else keep.to(dtype), mass=mass)
        noises = [answer(rounded(exact, weights), "reference", keep=keep, mass=mass) for _ in range(roundings)]
        for part, what in enumerate(("output", "gradient")):
            assert len(ours[part]) == len(truth[part])
            for index, (t, a, b) in enumerate(zip(truth[part], ours[part], theirs[part], strict=True)):
                assert a.shape == t.shape, (what, index, a.shape, t.shape)
                assert a.dtype == b.dtype, (what, index, a.dtype, b.dtype)
                assert torch.equal(a == float("-inf"), t == float("-inf")), (what, index)
                noise = sum(_square(n[part][index], t) for n in noises) / max(roundings, 1)
                sums = squares.setdefault((what, index), [0.0] * 4)
                for at, square in enumerate((_square(a, t), _square(b, t), _square(t, None), noise)):
                    sums[at] += square
    assert squares, "no draw"
    for where, sums in squares.items():
        ours, theirs, size, noise = (s**0.5 for s in sums)
        allowed = 2 * theirs + unit * size + ROUNDINGS * noise
        assert ours <= allowed, f"{where}: error {ours:.3e}, {allowed:.3e} allowed; of the reference {theirs:.3e}"


def rounded(case: Case, weights: torch.dtype) -> Case:
    """The float64 case with every input and every score off by a random unit in the last place of float32.

    Weights are rounded to ``weights``, which is an error of the score that does not grow with it.
    """
    eps = torch.finfo(torch.float32).eps

    def off(x):
        if isinstance(x, tuple):
            return tuple(off(part) for part in x)
        return None if x is None else (x.detach() * (1 + eps * _uniform(x))).requires_grad_()

    seen, lse = attention_weights(case)
    scores = torch.where(seen > 0, seen.clamp(min=1e-300).log() + lse[..., None], 0.0)
    noise = (eps * scores.abs() + torch.finfo(weights).eps) * _uniform(scores)
    options = dict(case.options)
    mask = options.get("attn_mask")
    if mask is not None:
        noise = noise.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else noise + mask.detach()
    options["attn_mask"] = noise
    return Case(case.labels, [off(x) for x in case.inputs], [off(x) for x in case.tables], options)


def _uniform(like: Tensor) -> Tensor:
    return torch.empty_like(like).uniform_(-1, 1)


def _square(x: Tensor, truth: Tensor | None) -> float:
    """The squared distance from ``truth``, where that is finite."""
    x = x.detach().double().cpu()
    if truth is None:
        return float(x[x != float("-inf")].square().sum())
    finite = truth != float("-inf")
    return float((x - truth)[finite].detach().square().sum())
