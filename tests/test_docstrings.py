"""Every public name explains itself: a summary, its arguments with their shapes, results, errors, source, an example."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor

from tests.docstrings import exports, faults, faults_of_member, hides_words, undefined_names

MODULES = ["relgraph"] + [
    f"relgraph.{name}"
    for name in ("functional", "score", "labels", "labelers", "nn", "pyg", "interop", "plot", "distributed")
]
MODULES += [f"relgraph.interop.{name}" for name in ("bert", "conllu", "networkx", "python", "transformers")]


def modules() -> list[ModuleType]:
    return [import_module(name) for name in MODULES if find_spec(name)]


def public() -> dict[str, Any]:
    """Return every public object once, under its shortest name."""
    named: dict[int, tuple[str, Any]] = {}
    for module in modules():
        for name in exports(module):
            thing = getattr(module, name)
            named.setdefault(id(thing), (f"{module.__name__}.{name}", thing))
    return dict(sorted(named.values()))


PUBLIC = public()
CALLABLES = {name: thing for name, thing in PUBLIC.items() if inspect.isclass(thing) or inspect.isfunction(thing)}
CONSTANTS = {name: thing for name, thing in PUBLIC.items() if name not in CALLABLES and not inspect.ismodule(thing)}
MEMBERS = {
    f"{name}.{member}": (cls, member)
    for name, cls in CALLABLES.items()
    if inspect.isclass(cls)
    for base in cls.__mro__
    if base.__module__.startswith("relgraph")
    for member, value in vars(base).items()
    if not member.startswith("_") or member == "__call__"
    if isinstance(value, (property, classmethod, staticmethod))
    or (inspect.isfunction(value) and value.__module__ == base.__module__)  # PyG writes methods when it makes a layer
}


def is_documented_constant(name: str, value: Any) -> bool:
    """Return whether a string follows the assignment in the module that makes the constant."""
    for module in [m for m in list(sys.modules.values()) if m.__name__.startswith("relgraph")]:
        if vars(module).get(name) is not value or module.__file__ is None:
            continue
        for one, after in pairwise(ast.parse(inspect.getsource(module)).body):
            if isinstance(one, ast.Assign) and getattr(one.targets[0], "id", None) == name:
                return isinstance(after, ast.Expr) and isinstance(getattr(after.value, "value", None), str)
    return False


@pytest.mark.parametrize("name", CALLABLES)
def test_a_class_or_function_explains_itself(name):
    found = list(faults(CALLABLES[name]))
    assert not found, f"{name}: " + "; ".join(found)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_method_or_property_explains_itself(name):
    found = list(faults_of_member(*MEMBERS[name]))
    assert not found, f"{name}: " + "; ".join(found)


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_is_explained_where_it_is_made(name):
    assert is_documented_constant(name.rpartition(".")[2], CONSTANTS[name]), f"{name}: no string beneath its assignment"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_a_module_shows_an_example_or_lists_what_is_in_it(module):
    doc = module.__doc__ or ""
    left_out = [name for name in exports(module) if not re.search(rf"\b{name}\b", doc)]
    assert ">>>" in doc or not left_out, f"{module.__name__}: its docstring has no >>> and leaves out {left_out}"
    assert not undefined_names(doc), f"{module.__name__}: its example does not define {undefined_names(doc)}"


class Bad:
    """Bad(...) says nothing."""

    def encode(self, length: int) -> int:
        """Half told.

        Args:
            size: of what?
        """
        return length

    @property
    def size(self) -> int:
        """Size: how large."""
        return 0

    def silent(self) -> None: ...


def bad(query: Tensor, scale: float) -> Tensor:
    """Too short

    Source: relgraph's own.

    Args:
        query: what asks.
        key: what is asked.

    Returns:
        A result: of no shape.

    Raises:
        WrongError: never.
    """
    raise ValueError


@pytest.fixture
def as_if_public(monkeypatch):
    for thing in (bad, Bad):
        monkeypatch.setattr(thing, "__module__", "relgraph")


def test_faults_of_a_function_are_found(as_if_public):
    assert list(faults(bad)) == [
        "the summary must be one line, a sentence, with a blank line after it; it begins 'Too short'",
        "Args leaves out 'scale'",
        "Args documents 'key', which the signature does not have",
        "Args gives no shape for the tensor 'query': ``[N, D]``, or the word scalar",
        "Returns gives no shape for the tensor: ``[N, D]``, or the word scalar",
        "Returns has a colon in its first line, and Sphinx takes what stands before it for a type",
        "Raises names 'WrongError', which is no exception",
        "Source names no source: leave the line out where there is none",
        "Example is missing, with at least one >>>",
    ]


def test_faults_of_a_class_are_found(as_if_public):
    assert list(faults(Bad)) == ["there is no docstring"]
    assert list(faults_of_member(Bad, "silent")) == ["there is no docstring"]
    assert list(faults_of_member(Bad, "size")) == [
        "there is a colon in the first line, and Sphinx takes what stands before it for a type"
    ]
    assert list(faults_of_member(Bad, "encode")) == [
        "Args leaves out 'length'",
        "Args documents 'size', which the signature does not have",
        "Returns is missing, for int",
    ]


def test_names_that_examples_leave_undefined_are_found():
    assert undefined_names(">>> ClippedDistance(2)(size)") == {"ClippedDistance", "size"}
    assert undefined_names(">>> from math import pi as p\n>>> [x * p for x in map(lambda y: y, rg.names)]") == set()


def test_literals_and_roles_may_stand_before_a_colon():
    assert not hides_words("``(ids, attend)``: int64 and bool.") and not hides_words(
        ":class:`~relgraph.Labels`: those."
    )
    assert hides_words("Labels: those.")
