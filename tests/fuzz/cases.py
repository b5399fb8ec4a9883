"""A whole call drawn from a seed: numbers, tables, masks, options, and the gradients that come in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from relgraph.score import Named
from tests.fuzz.frame import Frame, draw_frame
from tests.fuzz.labels import (
    Densified,
    Described,
    Sum,
    Written,
    brings_offset,
    draw_labels,
    has_parallel,
    is_one_matrix,
    offset_forms,
    offset_given,
    parts_of,
)
from tests.fuzz.scores import Score, draw_gates, draw_query_biases, draw_scores, draw_sink

KINDS = ("key", "value", "query", "bias")
"""The kinds of tables, in the order of the arguments."""

LAYOUTS = ("plain", "plain", "transposed", "gaps")
"""How the numbers of an input lie in memory."""


@dataclass
class Case:
    """One call. Every number is a float32, so that it is the same in float64.

    Attributes:
        seed: what it was drawn from.
        frame: its pairs.
        labels: their labels.
        heads: H.
        kv_heads: H_kv.
        size: D.
        value_size: D_v.
        leaves: by name: ``query`` ``[B, H, N_q, D]``, ``key``, ``value``, ``mask`` (where it is floating) and tables as
            ``("key", 0)``, the key table of part 0; in float64. Of what :mod:`tests.fuzz.scores` draws: ``weight`` of
            the score, ``("rows", 0)`` ``[B, H, N_q, R]``, ``maps`` or ``coefficients`` and ``bases``, ``attr``,
            ``edge_key`` and ``edge_value``, ``sink`` ``[H]``, ``key_gate`` and ``value_gate``.
        learned: the names of those that need a gradient.
        layouts: how each lies in memory.
        bool_mask: a boolean mask ``[b, h, i, j]`` with sizes of 1 where it broadcasts, or None.
        mask_dims: with how many dimensions a mask is given.
        mask_dtype: of a floating mask in calls of narrower ones, or None.
        float64_only: whether the mask holds numbers that float32 does not.
        is_causal: whether it is.
        q_offset: the form in which the offset is given with the call.
        scale: as given.
        dropout_p: as given.
        keep: the dropout mask ``[B, H, N_q, N_k]``, or None.
        need_weights: whether weights are asked for.
        need_mass: whether label mass is.
        incoming: gradients of outputs by name: ``z``, ``lse``, ``weights`` and ``("mass", part)``.
        score: the compatibility function, or None for the dot product.
        lost: keys that a call is given with an -inf, ``[B, H_kv, N_k]``, or None; in ``leaves`` they are finite.
    """

    seed: int
    frame: Frame
    labels: Described
    heads: int
    kv_heads: int
    size: int
    value_size: int
    leaves: dict = field(default_factory=dict)
    learned: set = field(default_factory=set)
    layouts: dict = field(default_factory=dict)
    bool_mask: Tensor | None = None
    mask_dims: int = 4
    mask_dtype: torch.dtype | None = None
    float64_only: bool = False
    is_causal: bool = False
    q_offset: str = "none"
    scale: float | None = None
    dropout_p: float = 0.0
    keep: Tensor | None = None
    need_weights: bool = False
    need_mass: bool = False
    incoming: dict = field(default_factory=dict)
    score: Score | None = None
    lost: Tensor | None = None

    @property
    def factor(self) -> float:
        """The factor on score terms that hold a vector."""
        if self.scale is not None:
            return self.scale
        if self.score is not None and self.score.kind == "additive":
            return 1.0
        return self.size**-0.5 if self.size else 1.0

    @property
    def num_labels(self) -> tuple[int, ...]:
        """R of each part."""
        return tuple(part.num_labels for part in parts_of(self.labels))

    @property
    def learns_mask(self) -> bool:
        """Whether the mask needs a gradient."""
        return "mask" in self.learned

    def describe(self) -> str:
        """What was drawn, in a few lines."""
        frame = self.frame
        lines = [
            f"{'packed' if frame.packed else 'padded'}, batch {frame.batch}, queries {frame.q_sizes}, "
            f"keys {frame.k_sizes}, offsets {frame.offsets}",
            f"labels {self.labels}",
            f"heads {self.heads}/{self.kv_heads}, sizes {self.size} and {self.value_size}, scale {self.scale}",
            f"score {self.score}, leaves {', '.join(f'{name} {list(x.shape)}' for name, x in self.leaves.items())}; learned {self.learned}",
            f"bool mask {None if self.bool_mask is None else list(self.bool_mask.shape)}, causal {self.is_causal}, "
            f"offset given as {self.q_offset}, dropout {self.dropout_p}, weights {self.need_weights}, "
            f"mass {self.need_mass}, gradients of {list(self.incoming)}, "
            f"{0 if self.lost is None else int(self.lost.sum())} keys of -inf",
        ]
        return "\n".join(lines)


def draw(seed: int, frame: Frame | None = None) -> Case:
    """The case of a seed; over these pairs if they are given."""
    rng = Random(seed)
    generator = torch.Generator().manual_seed(seed)
    frame = frame or _lengthen(draw_frame(rng), Random(f"long {seed}"))
    heads, kv_heads = rng.choice([(1, 1), (1, 1), (2, 2), (2, 1), (4, 2), (3, 3), (3, 1)])
    size, value_size = (rng.choice([1, 2, 3, 4, 5, 8, *([0] if rng.random() < 0.2 else [])]) for _ in range(2))
    case = Case(seed, frame, draw_labels(rng, frame), heads, kv_heads, size, value_size)
    _draw_inputs(case, rng, generator)
    _draw_tables(case, rng, generator)
    _draw_mask(case, rng, generator)
    _draw_options(case, rng, generator)
    if any(case.num_labels) and not any(isinstance(name, tuple) for name in case.leaves):
        case.need_mass = True  # labels that nothing reads are refused
    _draw_incoming(case, rng, generator)
    draw_scores(case)
    draw_query_biases(case)
    draw_sink(case)
    draw_gates(case)
    _draw_batched(case)
    return case


def _lengthen(frame: Frame, rng: Random) -> Frame:
    """A few padded batches get more rows, from where compiled kernels work on them in other ways."""
    if frame.packed or rng.random() >= 0.04:
        return frame
    q_sizes = (rng.randint(24, 40),)
    return replace(frame, q_sizes=q_sizes, k_sizes=q_sizes if frame.q_sizes == frame.k_sizes else frame.k_sizes)


def _normal(shape: tuple[int, ...], generator: torch.Generator, scale: float = 1.0) -> Tensor:
    """Numbers that float32 holds, in float64."""
    return (torch.randn(shape, generator=generator) * scale).double()


def _draw_inputs(case: Case, rng: Random, generator: torch.Generator) -> None:
    frame = case.frame
    spread = rng.choice([1e-2, 1.0, 1.0, 1.0, 1.0, 30.0, 1e3])
    case.leaves = {
        "query": _normal((frame.batch, case.heads, frame.q_len, case.size), generator, spread),
        "key": _normal((frame.batch, case.kv_heads, frame.k_len, case.size), generator, rng.choice([0.1, 1.0, 1.0])),
        "value": _normal((frame.batch, case.kv_heads, frame.k_len, case.value_size), generator),
    }
    names = ["query", "key", "value"]
    case.learned = set(names) if rng.random() < 0.7 else {name for name in names if rng.random() < 0.5}
    case.layouts = {name: rng.choice(LAYOUTS) for name in names}


def _draw_tables(case: Case, rng: Random, generator: torch.Generator) -> None:
    """Each kind of table there or not, for each part there or not, shared by heads or one for each."""
    widths = {"key": (case.size,), "value": (case.value_size,), "query": (case.size,), "bias": ()}
    everything = rng.random() < 0.3
    for kind in KINDS:
        there, per_head = everything or rng.random() < 0.5, rng.random() < 0.4
        spread = rng.choice([0.0, 0.1, 1.0, 1.0, 5.0])
        for part, count in enumerate(case.num_labels):
            if there and (part == 0 or rng.random() < 0.7):
                shape = (*((case.heads,) if per_head else ()), count, *widths[kind])
                case.leaves[kind, part] = _normal(shape, generator, spread)
    tables = [name for name in case.leaves if isinstance(name, tuple)]
    case.learned |= set(tables) if rng.random() < 0.7 else {name for name in tables if rng.random() < 0.5}
    if isinstance(case.labels, Written) and case.labels.raw and not tables:
        case.leaves["bias", 0] = _normal((case.num_labels[0],), generator)  # tells R
    if tables and case.frame.packed and rng.random() < 0.1:
        case.layouts.update(dict.fromkeys(tables, "gaps"))


def _draw_batched(case: Case) -> None:
    """Give tables of some kinds a batch axis, in half of the padded cases; from a stream of its own."""
    rng = Random(f"batched {case.seed}")
    if case.frame.packed or rng.random() >= 0.5:
        return
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    kinds = {kind for kind in KINDS if rng.random() < 0.5}
    for name, table in case.leaves.items():
        if not isinstance(name, tuple) or name[0] not in kinds or rng.random() < 0.2:
            continue
        row = table.shape[-1:] if name[0] == "bias" else table.shape[-2:]
        heads = case.heads if rng.random() < 0.5 else 1
        case.leaves[name] = _normal((case.frame.batch, heads, *row), generator)
        case.layouts[name] = rng.choice(LAYOUTS)


def _draw_mask(case: Case, rng: Random, generator: torch.Generator) -> None:
    frame = case.frame
    kind = rng.choice(["none", "none", "bool", "float", "float"])
    if kind == "none":
        return
    full = (frame.batch, case.heads, frame.q_len, frame.k_len)
    shape = tuple(1 if rng.random() < 0.35 else n for n in full)
    if frame.packed:
        shape = (1, *shape[1:])
    most = 3 if frame.packed else 4
    leading = next((at for at, n in enumerate(shape) if n != 1), 4)
    case.mask_dims = rng.randint(min(4 - leading, most), most)
    seen = torch.rand(shape, generator=generator) < rng.choice([0.0, 0.3, 0.7, 0.9, 1.0])
    if kind == "bool":
        case.bool_mask = seen
        return
    mask = _normal(shape, generator, rng.choice([0.0, 1.0, 3.0]))
    hidden = rng.choice(["-inf", "-inf", "least", "least", "least of float64", "-1e4", "-1e9", "nothing"])
    case.float64_only = hidden in ("least of float64", "-1e9")
    least = torch.finfo(torch.float64 if case.float64_only else torch.float32).min
    number = {"-inf": float("-inf"), "-1e4": -1e4, "-1e9": -1e9, "nothing": 0.0}.get(hidden, least)
    case.leaves["mask"] = torch.where(seen, mask, torch.tensor(number, dtype=torch.float64))
    if rng.random() < 0.3:
        case.learned.add("mask")
    case.layouts["mask"] = rng.choice(LAYOUTS)
    dtypes = [None, None, torch.float64, torch.float64 if case.float64_only else torch.float32]
    case.mask_dtype = Random(f"mask {case.seed}").choice(dtypes)


def _draw_options(case: Case, rng: Random, generator: torch.Generator) -> None:
    frame = case.frame
    case.scale = rng.choice([None, None, None, 1.0, 0.0, -0.5, 2.0])
    case.is_causal = rng.random() < 0.35
    forms = offset_forms(frame)
    case.q_offset = rng.choice(forms)
    if "none" in forms and not (case.is_causal and frame.q_sizes != frame.k_sizes) and rng.random() < 0.5:
        case.q_offset = "none"
    elif case.q_offset == "none" and case.is_causal and frame.q_sizes != frame.k_sizes:
        case.q_offset = "int"
    if brings_offset(case.labels) and rng.random() < 0.5:
        case.q_offset = "none"
    elif rng.random() < 0.15:
        _densify(case)
    if rng.random() < 0.25:
        case.dropout_p = rng.choice([0.1, 0.5, 0.9])
        shape = (frame.batch, case.heads, frame.q_len, frame.k_len)
        case.keep = (torch.rand(shape, generator=generator) >= case.dropout_p).double()
    case.need_mass = case.labels is not None and rng.random() < 0.6
    case.need_weights = rng.random() < 0.15


def _densify(case: Case) -> None:
    """Turn the labels into dense ones where that can be; what they say of distances the call then says itself."""
    labels = case.labels
    if case.frame.packed or labels is None or isinstance(labels, Sum) or not is_one_matrix(labels):
        return
    if not (isinstance(labels, Written) and labels.raw):
        case.labels = Densified(labels)


def _draw_incoming(case: Case, rng: Random, generator: torch.Generator) -> None:
    """Random gradients of some outputs, also where a row sees nothing."""
    frame = case.frame
    rows = (frame.batch, case.heads, frame.q_len)
    shapes: dict = {"z": (*rows, case.value_size), "lse": rows}
    if case.need_weights:
        shapes["weights"] = (*rows, frame.k_len)
    if case.need_mass:
        shapes.update({("mass", part): (*rows, count) for part, count in enumerate(case.num_labels)})
    chosen = list(shapes) if rng.random() < 0.6 else [name for name in shapes if rng.random() < 0.5] or ["z"]
    case.incoming = {name: _normal(shapes[name], generator) for name in chosen}


def lose_keys(case: Case) -> None:
    """Give some keys an -inf that makes all their scores -inf, in a tenth of the cases where one number can."""
    rng = Random(f"lost {case.seed}")
    named = case.score is None or (case.score.kind == "function" and isinstance(case.score.curve.made, Named))
    others = not {"content_bias", "key_gate"}.isdisjoint(case.leaves) or any(
        name[0] == "query" for name in case.leaves if isinstance(name, tuple)
    )
    if rng.random() >= 0.1 or not case.size or case.factor <= 0 or not named or others:
        return
    case.leaves["query"][..., 0] = case.leaves["query"][..., 0].abs() + 0.01
    case.learned.discard("query")  # 0 · inf
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    case.lost = torch.rand(case.leaves["key"].shape[:3], generator=generator) < rng.choice([0.2, 0.6])


def rounded(case: Case, dtype: torch.dtype) -> Case:
    """The case with numbers that a half type holds; those of a mask in a wider dtype stay."""

    def off(name: Any, x: Tensor) -> Tensor:
        kept = name == "mask" and case.mask_dtype is not None
        most = torch.finfo(dtype).max
        return x if kept else torch.where(x.isfinite(), x.clamp(-most, most), x).to(dtype).double()

    leaves = {name: off(name, x) for name, x in case.leaves.items()}
    return replace(case, leaves=leaves, incoming={name: off(name, x) for name, x in case.incoming.items()})


def given_offset(case: Case) -> int | Tensor | None:
    """The offset as the call is given it."""
    return offset_given(case.frame, case.q_offset)


def is_sum(case: Case) -> bool:
    """Whether tables and masses are tuples."""
    return isinstance(case.labels, Sum)


__all__ = ["KINDS", "Case", "draw", "given_offset", "has_parallel", "is_sum", "lose_keys", "rounded"]
