"""What a call may have besides the dot product: functions with their slopes, and the drawing of all of it.

A case gets a score of :mod:`relgraph.score`, scores by row, maps of the values and vectors on edges from a stream of
random numbers of their own, so that the rest of a case does not depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

import relgraph as rg
from tests.fuzz.labels import Described, Edges, Sum, WithVectors, parts_of, sums_edges

SHARE = 0.4
"""How many of the seeds have any of this."""


BIASES = ("content_bias", "position_bias")
"""Biases of the query."""

GATES = ("key_gate", "value_gate")
"""What labels multiply."""


class Spread(NamedTuple):
    """The value and the slope of a curve at numbers that are known up to an error, with the errors of both."""

    value: Tensor
    error: Tensor
    slope: Tensor
    slope_error: Tensor


@dataclass(frozen=True)
class Curve:
    """A function of one number with its derivative, written out by hand.

    Attributes:
        name: the name of the activation, or what it is.
        value: the function, in float64.
        slope: its derivative.
        steepest: the largest size of the derivative.
        bend: how much the derivative changes at most from x to x + 1, its jump left out.
        jump: how far the derivative jumps at 0, where either side may be taken.
        made: what the library is given: a name or a function.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    steepest: float
    bend: float
    jump: float
    made: Any

    def at(self, x: Tensor, error: Tensor, rounding: float) -> Spread:
        """Value and slope at ``x``, which is off by up to ``error``; each is itself rounded."""
        value, slope = self.value(x), self.slope(x)
        slope_error = (self.bend * error + self.jump * (x.abs() <= error)).clamp(max=2 * self.steepest)
        largest = (slope.abs() + slope_error).clamp(max=self.steepest)
        return Spread(
            value, error * largest + rounding * (value.abs() + 1.0), slope, slope_error + rounding * self.steepest
        )


def softcap(cap: float) -> Curve:
    """The curve of ``Softcap``."""
    return Curve(
        f"softcap {cap}",
        lambda x: cap * (x / cap).tanh(),
        lambda x: 1.0 - (x / cap).tanh() ** 2,
        1.0,
        0.77 / cap,
        0.0,
        rg.score.Softcap(cap),
    )


def leaky(slope: float, made: Any) -> Curve:
    """The curve of a leaky ReLU."""
    return Curve(
        f"leaky {slope}",
        lambda x: torch.where(x > 0, x, slope * x),
        lambda x: torch.full_like(x, slope).masked_fill(x > 0, 1.0),
        max(1.0, slope),
        0.0,
        abs(1.0 - slope),
        made,
    )


ARC = Curve("atan", torch.atan, lambda x: 1.0 / (1.0 + x * x), 1.0, 0.65, 0.0, torch.atan)
"""A function of the user's."""


def _normal_share(x: Tensor) -> Tensor:
    return 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def _normal_density(x: Tensor) -> Tensor:
    return (-0.5 * x * x).exp() / math.sqrt(2.0 * math.pi)


ACTIVATIONS = (
    leaky(0.2, "leaky_relu"),
    Curve("tanh", torch.tanh, lambda x: 1.0 - x.tanh() ** 2, 1.0, 0.77, 0.0, "tanh"),
    leaky(0.0, "relu"),
    Curve(
        "elu",
        lambda x: torch.where(x > 0, x, x.clamp(max=0).expm1()),
        lambda x: x.clamp(max=0).exp(),
        1.0,
        1.0,
        0.0,
        "elu",
    ),
    Curve(
        "gelu",
        lambda x: x * _normal_share(x),
        lambda x: _normal_share(x) + x * _normal_density(x),
        1.13,
        0.8,
        0.0,
        "gelu",
    ),
    Curve(
        "silu",
        lambda x: x * x.sigmoid(),
        lambda x: x.sigmoid() * (1.0 + x * (1.0 - x.sigmoid())),
        1.1,
        0.5,
        0.0,
        "silu",
    ),
    ARC,
)
"""Those of ``Additive``, each 0 at 0."""


@dataclass(frozen=True)
class Score:
    """A score of :mod:`relgraph.score`, whose weight is a leaf of the case.

    Attributes:
        kind: ``"function"``, ``"additive"`` or ``"bilinear"``.
        curve: the function of scores, or the activation.
    """

    kind: str
    curve: Curve | None = None

    def build(self, leaves: dict) -> Any:
        """The real one."""
        if self.kind == "bilinear":
            return rg.score.Bilinear(leaves["weight"])
        assert self.curve is not None
        return rg.score.Additive(leaves["weight"], self.curve.made) if self.kind == "additive" else self.curve.made

    def __repr__(self) -> str:
        return self.kind if self.curve is None else f"{self.kind} {self.curve.name}"


def given(case: Any, leaves: dict, place: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """The arguments of a call for all of this.

    Args:
        case: what was drawn.
        leaves: its leaves, as the call is given them.
        place: turns ``[B, H, N_q, R]`` into what the call takes.
    """
    rows = tuple(leaves.get(("rows", part)) for part in range(len(case.num_labels)))
    rows = tuple(None if x is None else place(x) for x in rows)
    some = any(x is not None for x in rows)
    maps = leaves.get("maps")
    if "bases" in leaves:
        maps = leaves["coefficients"], leaves["bases"]
    return {
        "score": None if case.score is None else case.score.build(leaves),
        "content_bias": leaves.get("content_bias"),
        "position_bias": leaves.get("position_bias"),
        "row_scores": (rows if isinstance(case.labels, Sum) else rows[0]) if some else None,
        "value_map": maps,
        "edge_attr": leaves.get("attr"),
        "edge_key": leaves.get("edge_key"),
        "edge_value": leaves.get("edge_value"),
        "sink": leaves.get("sink"),
        "key_gate": leaves.get("key_gate"),
        "value_gate": leaves.get("value_gate"),
    }


def maps_one_label(labels: Described) -> bool:
    """Whether labels may have maps: one label at most for each pair, of one part."""
    parts = parts_of(labels.edges if isinstance(labels, WithVectors) else labels)
    return len(parts) == 1 and parts[0].num_labels > 0 and not sums_edges(labels)


def takes_vectors(labels: Described) -> bool:
    """Whether edges may have vectors: edges, of one kind."""
    return isinstance(labels, Edges) and not isinstance(labels.default, Edges)


class _Draw:
    """What is drawn for a case, and its random numbers."""

    def __init__(self, case: Any, stream: str) -> None:
        self.case, self.rng = case, Random(f"{stream} {case.seed}")
        self.generator = torch.Generator().manual_seed(self.rng.randrange(1 << 30))

    def leaf(self, name: Any, *shape: int, own: bool = True, spreads: tuple[float, ...] = (0.1, 1.0, 1.0)) -> None:
        """Add a leaf, for each head of its own at times; float32 holds its numbers."""
        heads = (self.case.heads,) if own and self.rng.random() < 0.5 else ()
        drawn = torch.randn(*heads, *shape, generator=self.generator) * self.rng.choice(spreads)
        self.case.leaves[name] = drawn.double()
        self.case.layouts[name] = self.rng.choice(("plain", "plain", "transposed", "gaps"))
        if self.rng.random() < 0.7:
            self.case.learned.add(name)

    def forget(self, name: Any) -> None:
        """Take a leaf away."""
        del self.case.leaves[name]
        self.case.learned.discard(name)
        self.case.layouts.pop(name, None)


def draw_scores(case: Any, stream: str = "scores") -> None:
    """Add to a case what a call may have besides the dot product.

    Args:
        case: has all else, and vectors on edges only if its labels are ``WithVectors``.
        stream: of random numbers, together with the seed.
    """
    draw = _Draw(case, stream)
    rng = draw.rng
    if rng.random() >= SHARE:
        return
    _draw_score(case, draw)
    if rng.random() < 0.4:
        _draw_rows(case, draw)
    if rng.random() < 0.4 and maps_one_label(case.labels):
        shape = (case.num_labels[0], case.value_size, case.value_size)
        if rng.random() < 0.5:
            draw.leaf("maps", *shape)
        else:
            count = rng.choice([1, 2, 3])
            draw.leaf("coefficients", shape[0], count)
            draw.leaf("bases", count, *shape[1:])
    if rng.random() < 0.6 and takes_vectors(case.labels):
        width = rng.choice([1, 2, 3])
        draw.leaf("attr", len(case.labels.edges), width, own=False)
        kinds = rng.choice([("edge_key",), ("edge_value",), ("edge_key", "edge_value")])
        for kind in kinds:
            draw.leaf(kind, case.size if kind == "edge_key" else case.value_size, width)


def _draw_score(case: Any, draw: _Draw) -> None:
    queries = any(name[0] == "query" for name in case.leaves if isinstance(name, tuple))
    case.score = _choose(draw.rng, additive=not queries, bilinear=maps_one_label(case.labels))
    if case.score is not None and case.score.kind == "additive":
        draw.leaf("weight", case.size)
    elif case.score is not None and case.score.kind == "bilinear":
        draw.leaf("weight", case.num_labels[0], case.size, case.size)


def _choose(rng: Random, *, additive: bool, bilinear: bool) -> Score | None:
    """A score, or None where it is one that the call does not take."""
    kind = rng.choice(["none", "softcap", "leaky", "function", "additive", "additive", "bilinear", "bilinear"])
    cap, slope, activation = rng.choice([0.5, 5.0, 50.0]), rng.choice([0.0, 0.2, 1.5]), rng.choice(ACTIVATIONS)
    if kind == "additive":
        return Score("additive", activation) if additive else None
    if kind == "bilinear":
        return Score("bilinear") if bilinear else None
    curves = {"softcap": softcap(cap), "leaky": leaky(slope, rg.score.LeakyReLU(slope)), "function": ARC}
    return None if kind == "none" else Score("function", curves[kind])


def _draw_rows(case: Any, draw: _Draw) -> None:
    """Scores by row for some parts, in place of their key tables."""
    counts = case.num_labels[:1] if isinstance(case.labels, WithVectors) else case.num_labels
    if not sum(counts):
        return
    rows = (case.frame.batch, case.heads, case.frame.q_len)
    for part, count in enumerate(counts):
        if part and draw.rng.random() < 0.3:
            continue
        draw.leaf(("rows", part), *rows, count, own=False, spreads=(0.1, 1.0, 5.0))
        if ("key", part) in case.leaves:
            draw.forget(("key", part))
    if not any(isinstance(name, tuple) and name[0] != "rows" for name in case.leaves):
        draw.leaf(("bias", 0), case.num_labels[0])  # labels without a table may be raw, and then it tells R


def draw_query_biases(case: Any) -> None:
    """Add biases of the query to a case with dot products, at times."""
    draw = _Draw(case, "query biases")
    if draw.rng.random() >= SHARE or "edge_key" in case.leaves or not _is_product(case.score):
        return
    keys = any(name[0] == "key" for name in case.leaves if isinstance(name, tuple))
    for name in _query_biases(draw.rng, keys=keys):
        draw.leaf(name, case.heads, case.size, own=False, spreads=(0.1, 1.0, 5.0))


def draw_sink(case: Any) -> None:
    """Add a sink, at times."""
    draw = _Draw(case, "sink")
    if draw.rng.random() < SHARE / 2:
        draw.leaf("sink", case.heads, own=False, spreads=(0.1, 1.0, 5.0))


def draw_gates(case: Any) -> None:
    """Add gates of keys, of values or of both, at times, where labels and all else take them."""
    draw = _Draw(case, "gates")
    if draw.rng.random() >= SHARE / 2 or not maps_one_label(case.labels):
        return
    if _is_product(case.score) and draw.rng.random() < 0.7:
        draw.leaf("key_gate", case.num_labels[0], case.size)
    if {"maps", "bases"}.isdisjoint(case.leaves) and draw.rng.random() < 0.7:
        draw.leaf("value_gate", case.num_labels[0], case.value_size)


def _is_product(score: Score | None) -> bool:
    return score is None or score.kind == "function"


def _query_biases(rng: Random, *, keys: bool) -> tuple[str, ...]:
    """Which biases there are; that of position only with key tables."""
    names = rng.choice([("content_bias",), ("position_bias",), ("content_bias", "position_bias")])
    return tuple(name for name in names if keys or name == "content_bias")


def layer_options(case: Any, rng: Random, *, count: int, kinds: list[str]) -> dict[str, Any]:
    """The arguments ``score`` and ``value_map`` of a layer; the case gets the score, and the layer has the weights.

    Args:
        case: heads, size and labels.
        rng: of these arguments alone.
        count: R, or 0 for a layer that takes no maps of labels.
        kinds: the kinds of its tables.
    """
    options: dict[str, Any] = {}
    case.score = None
    if rng.random() >= SHARE:
        return options
    case.score = _choose(rng, additive="query" not in kinds, bilinear=count > 0)
    if case.score is not None and case.score.kind == "additive":
        options["score"] = rg.score.Additive.learned(case.heads, case.size, case.score.curve.made)
    elif case.score is not None:
        made = case.score.curve is None
        bilinear = rg.score.Bilinear.learned(count, case.heads, case.size) if made else None
        options["score"] = bilinear if made else case.score.curve.made
    if count and rng.random() < 0.5:
        options["value_map"] = rng.choice([True, 1, 2, 3])
    return options


def layer_biases(case: Any, rng: Random, *, keys: bool) -> dict[str, Any]:
    """The arguments of a layer for biases of the query, after its score; ``keys`` says whether it has key tables."""
    if rng.random() >= SHARE or not _is_product(case.score):
        return {}
    return dict.fromkeys(_query_biases(rng, keys=keys), True)


def layer_parameters(layer: torch.nn.Module) -> dict[str, Tensor]:
    """The weights of a layer's score, maps and biases of queries by the names of leaves, as :func:`layer_options` asks for them."""
    named = [(layer.score, ("weight",)), (layer.value_map, ("maps", "coefficients", "bases"))]
    named.append((layer, (*BIASES, "sink")))
    found = {name: getattr(module, name, None) for module, names in named for name in names}
    return {name: x for name, x in found.items() if isinstance(x, Tensor)}


@torch.no_grad()
def scatter(layer: torch.nn.Module, generator: torch.Generator) -> None:
    """Move the weights of a layer's score and maps away from the values at which they begin."""
    for x in layer_parameters(layer).values():
        x.add_(torch.randn(x.shape, generator=generator, dtype=x.dtype))
