"""The entry of a configuration that says which relations a model has, and the labeler that it names.

A labeler is saved as the expression that makes it. Reading one runs no code of a file: it may only call labelers of
relgraph, with plain values, and compose them.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from relgraph import labelers
from relgraph.arguments.brief import shown
from relgraph.labelers import Labeler

ENTRY = "relgraph_relations"
"""The attribute of the configuration of a model with relations."""

_given: list[Any] = [None]
"""The labelers of :func:`using`; the last one counts."""

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Mult: operator.mul, ast.BitOr: operator.or_, ast.BitAnd: operator.and_,
}  # fmt: skip


def entry(labeler: Any, tables: Sequence[str], per_head: bool, layers: list[int] | None) -> dict[str, Any]:
    """What a configuration says about relations; ``labeler`` is None if no expression of relgraph makes it."""
    text = repr(labeler) if isinstance(labeler, Labeler) else None
    try:
        readable = text is not None and read(text) == labeler
    except ValueError:
        readable = False
    of_class = type(labeler).__name__
    expression = text if readable else None
    return {"labeler": expression, "class": of_class, "tables": list(tables), "per_head": per_head, "layers": layers}


def labeler_of(entry: Any) -> Labeler | None:
    """The labeler of an entry; None if it is a class of the user."""
    if not isinstance(entry, dict) or not {"labeler", "class", "tables", "per_head", "layers"} <= entry.keys():
        raise ValueError(f"config.{ENTRY} must be what add_relations writes, got {shown(entry)}")
    if _given[-1] is not None:
        return _given[-1]
    return None if entry["labeler"] is None else read(entry["labeler"])


@contextmanager
def using(labeler: Any) -> Iterator[None]:
    """Take this labeler, unless it is None, for all entries that are read."""
    _given.append(labeler)
    try:
        yield
    finally:
        _given.pop()


def warn_of(entry: Any) -> None:
    """Warn that a model is made without its relations."""
    warnings.warn(
        f"the model is made without its relations, as their labeler, {entry['class']}, is not one of relgraph: "
        "rg.interop.transformers.from_pretrained(path, labeler=...) takes it",
        stacklevel=5,
    )


def read(text: str) -> Labeler:
    """The labeler that an expression makes: calls of relgraph's labelers with plain values, and ``+ * | &``."""
    try:
        made = _made(ast.parse(text, mode="eval").body)
    except (SyntaxError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"labeler must be an expression of relgraph's labelers, got {shown(text)}: {error}") from None
    if not isinstance(made, Labeler):
        raise ValueError(f"labeler must be an expression of relgraph's labelers, got {shown(text)}")
    return made


def _made(node: ast.expr) -> Any:
    """The value of a part of an expression."""
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](*(_labeler(side) for side in (node.left, node.right)))
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    if isinstance(node.func, ast.Attribute) and node.func.attr == "dense":
        return _labeler(node.func.value).dense()
    found = getattr(labelers, node.func.id, None) if isinstance(node.func, ast.Name) else None
    if not (isinstance(found, type) and issubclass(found, Labeler)):
        raise ValueError(f"labeler must call only labelers of relgraph, got {shown(ast.unparse(node.func))}")
    return found(*map(_made, node.args), **{str(one.arg): _made(one.value) for one in node.keywords})


def _labeler(node: ast.expr) -> Labeler:
    made = _made(node)
    if not isinstance(made, Labeler):
        raise ValueError(f"labeler must compose labelers, got {shown(made)}")
    return made
