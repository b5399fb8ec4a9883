"""Rotary positions of transformers: label vectors meet the query as it was before its turn.

An attention function gets queries that their module turned. How it turns them is read from the source of its forward
and tried on a few numbers; a hook then hands the angles of each call to the attention function, which turns them back.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from relgraph.interop.transformers.common import made_once
from relgraph.interop.transformers.words import words_of
from relgraph.nn.rotary import label_scores, turned

ANGLES = "relation_angles"
"""The argument that the hook adds: a :class:`Turn` and ``position_embeddings``; None if the queries are not turned."""

_UNKNOWN = "relgraph cannot undo its rotary positions, so no key table can meet the query before them"

_KEYS = "its rotary positions turn keys before a query table could meet them"

_VALUES = "its rotary positions turn values too"

_TURNS = re.compile(r"\w*(rotary|apply\w*rope)\w*")
"""The names of functions that turn."""

_KEEPS = re.compile(
    r"(\w+, )*\w+ = (\(?q\w*\.(transpose|permute|to)\(|torch\.cat\(|self\.qk_norm\(|"
    r"\(?q\w* \* (self\.scaling|attn_scales|get_llama_4_attn_scale))"
)
"""What may happen to a query after its turn, as it could happen before: that norm, of Llama 4, has no weights."""

_FORMS = {"twice": lambda x: x.chunk(2, -1)[0], "twins": lambda x: x[..., ::2], "once": lambda x: x}
"""The angles of pairs, from those of a model: all pairs twice, each pair twice in a row, or each pair once."""


class Turn(NamedTuple):
    """How a module turns queries: pairs as in :class:`~relgraph.RotaryPositions`, angles as in ``_FORMS``."""

    layout: str
    form: str
    sine_first: bool = False

    def undone(self, query: Tensor, angles: Any) -> Tensor:
        """Queries ``[B, H, N, D]`` before their turn by ``position_embeddings``."""
        cos, sin = (angles.real, angles.imag) if isinstance(angles, Tensor) else angles[:: -1 if self.sine_first else 1]
        if cos.dim() not in (2, 3) or cos.shape[-2] != query.shape[2]:
            raise NotImplementedError(
                f"position_embeddings must have shape [B, {query.shape[2]}, ...], with one row per query, where a "
                f"relation has a key table, got {list(cos.shape)}"
            )
        wide = torch.promote_types(query.dtype, torch.float32)
        cos, sin = (_FORMS[self.form](x).unsqueeze(-3).to(wide) for x in (cos, sin))  # [B, 1, N, pairs]
        waves = torch.stack([cos, -sin]) / (cos.square() + sin.square())  # scaled positions stretch the query too
        part = 2 * cos.shape[-1]
        return torch.cat([turned(query[..., :part], waves, self.layout), query[..., part:]], -1)


def is_rotary(module: Any) -> bool:
    """Whether the forward of a module turns queries and keys, if perhaps not in this module or not in each call."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and any(map(_TURNS.fullmatch, code.co_names))


def why_not(module: Any, kinds: Sequence[str]) -> str | None:
    """Why the positions of a module forbid a relation with tables of these kinds; None if they do not."""
    turn = turn_of(module)
    if isinstance(turn, str):
        return turn if turn == _VALUES or {"key", "query"} & set(kinds) else None
    return _KEYS if turn is not None and "query" in kinds else None


def hand_angles(module: Any) -> None:
    """Let a module hand its attention function the angles of each call, if it has a relation then."""
    words = words_of(type(module).forward)
    place = words.index("position_embeddings") if "position_embeddings" in words else len(words)
    module.register_forward_pre_hook(partial(_with_angles, turn_of(module), place), with_kwargs=True)


def _with_angles(turn: Any, place: int, module: Any, args: Any, given: dict[str, Any]) -> Any:
    if getattr(module, "relation", None) is None:
        return None
    angles = args[place] if place < len(args) else given.get("position_embeddings")
    return args, given | {ANGLES: None if turn is None or angles is None else (turn, angles)}


def before_turn(
    module: nn.Module, query: Tensor, scale: float | None, tables: dict[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    """The tables of a relation, with the scores of each query before its turn in place of a key table."""
    if not tables.keys() & {"key_table", "query_table"} or not made_once(module, "rotary", is_rotary):
        return tables
    if ANGLES not in given:
        raise ValueError(
            f"relation must get the angles of the rotary positions of {type(module).__name__}, got none: place it by "
            "relation.attach(module), whose hook hands them on when the module is called"
        )
    if given[ANGLES] is None:
        return tables
    turn, angles = given[ANGLES]
    rest = {name: table for name, table in tables.items() if name != "key_table"}
    return rest | {"row_scores": label_scores(turn.undone(query, angles), tables["key_table"], None, scale, False)}


def turn_of(module: Any) -> Turn | str | None:
    """How a module turns its queries: None if it does not, or the reason if that cannot be undone."""
    forward: Any = inspect.unwrap(type(module).forward)
    if not is_rotary(module):
        variables = getattr(getattr(forward, "__code__", None), "co_varnames", ())
        return _UNKNOWN if {"position_embeddings", "cos"} <= {*variables} else None  # a turn by another name
    names, turns, later = {"self": module, "position_embeddings": ()}, [], []
    try:
        statements = _statements(forward)
        for text, tests in statements:
            call = re.search(rf"{_TURNS.pattern}\(", text)
            if (not call and not (turns and text.startswith("q"))) or text.startswith("k"):
                continue
            if all(bool(eval(test, forward.__globals__, names)) == outcome for test, outcome in tests):
                (turns if call else later).append(text)
    except (OSError, NameError, AttributeError):  # no source, or a condition that depends on the call
        return _UNKNOWN
    reads = [text for text, _ in statements if re.search("^position_embeddings = | = position_embeddings$", text)]
    if any(text.startswith(("v", "attn_output")) for text in turns):
        return _VALUES
    match = re.match(r"(q\w*)(?:, \w+)? = (\w+)\(", turns[0]) if len(turns) == 1 else None
    if match is None or not all(map(_KEEPS.match, later)) or len(reads) > 1:
        return _UNKNOWN if turns else None
    sine_first = reads == ["sin, cos = position_embeddings"]
    whole = not reads and "position_embeddings" in turns[0]  # complex numbers, as in Llama 4
    of_heads = "unsqueeze_dim=2" in turns[0] and "transpose" not in "".join(later)  # turned by the number of the head
    last = any(re.search(rf"torch\.cat\(.\w+, {match[1]}\W", text) for text in later)  # as in DeepSeek
    turn = _tried(forward.__globals__[match[2]])
    if turn is None or of_heads or last or not (whole or sine_first or reads == ["cos, sin = position_embeddings"]):
        return _UNKNOWN
    return turn._replace(sine_first=sine_first)


@cache
def _statements(forward: Any) -> list[tuple[str, tuple[tuple[str, bool], ...]]]:
    """The text of each statement of a forward, with the conditions around it and their outcomes."""

    def under(body: Any, tests: Any) -> Any:
        for one in body:
            if isinstance(one, ast.If):
                test = ast.unparse(one.test)
                yield from under(one.body, (*tests, (test, True)))
                yield from under(one.orelse, (*tests, (test, False)))
            else:
                yield ast.unparse(one), tests

    (function,) = ast.parse(textwrap.dedent(inspect.getsource(forward))).body
    return list(under(getattr(function, "body", ()), ()))


@cache
def _tried(function: Any) -> Turn | None:
    """How a function of transformers turns, by a try on one query; None if that could not be undone."""
    angles, row = torch.tensor([[[0.3, -0.8, 2.0]]], device="cpu"), torch.arange(1.0, 9.0, device="cpu")
    spread = {"twice": torch.cat([angles] * 2, -1), "twins": angles.repeat_interleave(2, -1), "once": angles}
    for turn in (Turn(layout, form) for layout in ("half", "interleaved") for form in spread):
        cos, sin = 1.5 * spread[turn.form].cos(), 1.5 * spread[turn.form].sin()
        for size in (8, 6):  # a part of a head, or all of it
            try:
                after, before = (_run(function, row[:size], *x) for x in ((cos, sin), (cos * 0 + 1, sin * 0)))
            except (RuntimeError, TypeError, ValueError):
                continue
            if not torch.allclose(turn.undone(after, (cos, sin)), before, atol=1e-4):
                break
            try:  # two angles for three queries: DINOv3 turns the last two
                some = _run(function, row[:size].repeat(3, 1), *(x.repeat(1, 2, 1) for x in (cos, sin)))
            except RuntimeError:
                return turn
            return None if some.shape == (1, 1, 3, size) else turn
    return None


def _run(function: Any, row: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """A query turned by a function whose arguments have telling names."""
    known = {"cos": cos, "sin": sin, "freqs_cis": torch.complex(cos, sin)}
    arguments = inspect.signature(function).parameters.values()
    needed = [x.name for x in arguments if x.name in known or (x.default is x.empty and x.kind is not x.VAR_KEYWORD)]
    answer = function(**{name: known.get(name, row.view(1, 1, -1, row.shape[-1])) for name in needed})
    return answer[0] if isinstance(answer, tuple) else answer
