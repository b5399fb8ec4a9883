"""What a call of attention takes: one row for each tensor, one for each option.

Checks and their messages, cutting by batch rows, heads, rows and keys, lists of tensors for autograd, and signatures
follow from these rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, TypeVar, get_type_hints

from torch import Tensor

from relgraph.labels import Labels
from relgraph.score import Additive, Bilinear, Compatibility, Score

LabelsLike = Labels | Tensor | None
"""Labels, raw ids ``[N_q, N_k]`` or ``[B, N_q, N_k]``, or None for plain attention."""

Table = Tensor | Sequence[Tensor | None] | None
"""A table, or one per part when the labels are a sum."""

Maps = Tensor | tuple[Tensor, Tensor]
"""A map for each label, or coefficients and bases of the maps."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Options(TypedDict, total=False):
    """The keyword arguments of attention, which :func:`~relgraph.relation_attention` explains."""

    attn_mask: Tensor | None
    is_causal: bool
    q_offset: int | Tensor | None
    dropout_p: float
    scale: float | None
    enable_gqa: bool
    score: Score | None
    content_bias: Tensor | None
    position_bias: Tensor | None
    row_scores: Table
    value_map: Maps | None
    edge_attr: Tensor | None
    edge_key: Tensor | None
    edge_value: Tensor | None
    sink: Tensor | None
    key_gate: Tensor | None
    value_gate: Tensor | None
    impl: str | None


POSITIONAL = ("query", "key", "value", "labels", "key_table", "value_table", "query_table", "bias_table")
"""The arguments that may be given by position."""

OPTIONS = frozenset(Options.__annotations__)
DEFAULTS = {"is_causal": False, "dropout_p": 0.0, "enable_gqa": False}
"""The options whose default is not None."""


def takes_options(*left_out: str) -> Callable[[_Function], _Function]:
    """Decorate a function with ``**options`` so that ``help`` shows each of them, except those ``left_out``."""

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [x for x in signature.parameters.values() if x.kind is not x.VAR_KEYWORD]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS.get(name), annotation=annotation)
            for name, annotation in get_type_hints(Options).items()
            if name not in left_out
        ]
        before = [x for x in own if x.kind is not x.KEYWORD_ONLY]
        function.__signature__ = signature.replace(  # pyright: ignore[reportFunctionMemberAccess]
            parameters=[*before, *added, *own[len(before) :]]
        )
        return function

    return decorate


def check_options(function: str, options: Options, *left_out: str) -> None:
    """Raise TypeError for an argument that a function does not take."""
    for name in options:
        if name not in OPTIONS or name in left_out:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


class Operand(NamedTuple):
    """One tensor of a call.

    Attributes:
        name: the argument, as errors call it.
        forms: the shapes that it may have, as names of axes; 1 is an axis of one entry.
        packed: the same for inputs without a batch axis, ``[N, H, D]``.
        place: where a :class:`~relgraph.call.Call` holds it: a field, or a field and a field of that.
        per_part: whether a sum of labels has one per part.
        any_dtype: whether its dtype may differ from that of the query.
    """

    name: str
    forms: tuple[tuple[str, ...], ...]
    packed: tuple[tuple[str, ...], ...]
    place: tuple[str, ...]
    per_part: bool = False
    any_dtype: bool = False

    def axis(self, x: Tensor, axis: str, *, packed: bool = False) -> int | None:
        """Where a tensor has the axis of this name, counted from the end; None if it lacks it."""
        forms = self.packed if packed else self.forms
        form = next((form for form in reversed(forms) if len(form) == x.dim()), forms[-1])
        at = form.index(axis) - len(form) if axis in form else 0
        return at if at and x.dim() >= -at else None

    def cut(self, x: Tensor, taken: Mapping[str, range], *, packed: bool = False) -> Tensor:
        """Some entries of these axes; a missing one stays, and one of a single entry unless none is taken."""
        for axis, entries in taken.items():
            at = self.axis(x, axis, packed=packed)
            if at is not None and (x.shape[at] != 1 or not entries):  # one entry may be its own, and not one for all
                x = x.narrow(at, min(entries.start, x.shape[at]), len(entries))
        return x


def _row(
    name: str, forms: str, place: str = "", *, by_rows: bool = False, per_part: bool = False, any_dtype: bool = False
) -> Operand:
    shapes = tuple(tuple(form.split()) for form in forms.split("|"))
    if by_rows:
        packed = tuple((form[2], form[1], *form[3:]) for form in shapes)
    else:
        packed = tuple(form for form in shapes if form[0] != "B") or tuple(form[1:] for form in shapes)
    return Operand(name, shapes, packed, tuple((place or name).split(".")), per_part, any_dtype)


_TABLE = "R D | H R D | B 1 R D | B H R D"

OPERANDS = (
    _row("query", "B H N_q D", by_rows=True),
    _row("key", "B H_kv N_k D", by_rows=True),
    _row("value", "B H_kv N_k D_v", by_rows=True),
    _row("key_table", _TABLE, "tables.key", per_part=True),
    _row("value_table", _TABLE.replace("D", "D_v"), "tables.value", per_part=True),
    _row("query_table", _TABLE, "tables.query", per_part=True),
    _row("bias_table", _TABLE.replace(" D", ""), "tables.bias", per_part=True),
    _row("row_scores", "B H N_q R", "tables.rows", by_rows=True, per_part=True, any_dtype=True),
    _row("attn_mask", "B H N_q N_k", "mask", any_dtype=True),
    _row("content_bias", "H D"),
    _row("position_bias", "H D"),
    _row("value_map coefficients", "R K | H R K", "value_map.coefficients", any_dtype=True),
    _row("value_map bases", "K D_v D_v | H K D_v D_v", "value_map.bases", any_dtype=True),
    _row("edge_attr", "E F", "edge.attr", any_dtype=True),
    _row("edge_key", "D F | H D F", "edge.key", any_dtype=True),
    _row("edge_value", "D_v F | H D_v F", "edge.value", any_dtype=True),
    _row("sink", "H", any_dtype=True),
    _row("key_gate", "R D | H R D", "gates.key"),
    _row("value_gate", "R D_v | H R D_v", "gates.value"),
)
"""All tensors of a call.

A new one is a row here, an option above, its term in the implementations, and a field of the kernels' struct where they
compute it.
"""

BY_NAME = {operand.name: operand for operand in OPERANDS}

FREE_MAPS = _row("value_map", "R D_v D_v | H R D_v D_v", "value_map.bases", any_dtype=True)
"""Maps without coefficients, one per label."""

_WEIGHTS = {kind.weight_forms: _row("score.weight", kind.weight_forms, any_dtype=True) for kind in (Additive, Bilinear)}


def weight_of(score: Compatibility) -> Operand:
    """The weight of a score that replaces the dot product."""
    return _WEIGHTS[score.weight_forms]


Given = Mapping[str, Any]
"""The arguments of a caller by name; a missing one has its default."""


def map_given(given: Given, change: Callable[[Operand, Any], Any]) -> dict[str, Any]:
    """The arguments with ``change(operand, x)`` in the place of each tensor that is given, apart from a score's."""
    found = dict(given)
    for name, x in given.items():
        if x is None:
            continue
        several = isinstance(x, (tuple, list))
        if name == "value_map":
            rows = [BY_NAME[f"value_map {part}"] for part in ("coefficients", "bases")] if several else [FREE_MAPS]
        elif name in BY_NAME:
            rows = [BY_NAME[name]] * (len(x) if several else 1)
        else:
            continue
        changed = [None if y is None else change(row, y) for row, y in zip(rows, x if several else (x,), strict=True)]
        found[name] = tuple(changed) if several else changed[0]
    return found


def cut_given(given: Given, taken: Mapping[str, range], *, packed: bool) -> dict[str, Any]:
    """The arguments with some entries of the axes of these names, the weight of a score too."""
    found = map_given(given, lambda operand, x: operand.cut(x, taken, packed=packed))
    score = given.get("score")
    if isinstance(score, Compatibility) and score.replaces_dot:
        found["score"] = score.with_weight(weight_of(score).cut(score.weight, taken))
    return found
