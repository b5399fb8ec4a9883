"""Find faults of docstrings: Google's sections are compared with the signature and the code."""

import ast
import builtins
import doctest
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from operator import attrgetter
from types import ModuleType
from typing import Any

import relgraph as rg

SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Example):$")
ENTRY = re.compile(r"(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): (.*)")
SHAPE = re.compile(r"``\[[^()\]]*\]``|\bscalars?\b")
TENSOR = re.compile(r"(torch\.)?Tensor( \| None)?$")
MARKUP = re.compile(r":\w+:`[^`]*`|``[^`]*``")
TAKEN_OVER = re.compile(r"further arguments as in :\w+:`~relgraph\.([\w.]+)`")
HOOKS = ("extra_repr", "load_state_dict", "reset_parameters")  # torch's, documented there


def exports(module: ModuleType) -> list[str]:
    """The public names of a module: its ``__all__``, or what it imports as ``from x import Y as Y``."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    imports = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ImportFrom)]
    return [alias.name for node in imports for alias in node.names if alias.asname == alias.name]


def sections(doc: str) -> dict[str, str]:
    """The text under each heading of a docstring; under "" what stands beneath none."""
    found: dict[str, list[str]] = {"": []}
    title = ""
    for line in inspect.cleandoc(doc).splitlines():
        heading = SECTION.match(line)
        if heading is not None or (line and not line.startswith(" ")):
            title = heading[1] if heading else ""
        if heading is None:
            found[title].append(line)
        else:
            found.setdefault(title, [])
    return {title: inspect.cleandoc("\n".join(["", *lines])) for title, lines in found.items()}


def entries(text: str) -> dict[str, str]:
    """``name: what it is`` by name, continuation lines included; a line that is no entry stands under its own text."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in text.splitlines():
        entry = ENTRY.match(line)
        if not line.startswith(" ") and line:
            names = [name.lstrip("*") for name in entry[1].split(", ")] if entry else [line]
        for name in names:
            found[name] = f"{found.get(name, '')} {line}"
    return found


def parameters(function: Callable) -> dict[str, str]:
    """The annotation of every parameter, by name."""
    given = inspect.signature(function).parameters.values()
    return {p.name: str(p.annotation) for p in given if p.name not in ("self", "cls")}


def own_doc(cls: type, name: str) -> str | None:
    """The docstring of a member, or of what it overrides in this package."""
    members = [
        vars(base)[name] for base in cls.__mro__ if base.__module__.startswith("relgraph") and name in vars(base)
    ]
    return next((member.__doc__ for member in members if member.__doc__), None)


def is_exception(name: str) -> bool:
    """Return whether a name, with its module if it is not built in, is that of an exception."""
    module, _, kind = name.rpartition(".")
    thing = getattr(importlib.import_module(module) if module else builtins, kind, None)
    return inspect.isclass(thing) and issubclass(thing, Exception)


def hides_words(text: str) -> bool:
    """Return whether Sphinx would take words before a colon in the first line for a type."""
    before, colon, _ = MARKUP.sub("", text.partition("\n")[0]).partition(":")
    return bool(colon and before.strip())


def undefined_names(doc: str) -> set[str]:
    """The names that examples use and neither define nor import, other than ``torch`` and ``rg``."""
    used, known = set(), {"torch", "rg", *dir(builtins)}
    for example in doctest.DocTestParser().get_examples(doc):
        for node in ast.walk(ast.parse(example.source)):
            if isinstance(node, ast.Name):
                (used if isinstance(node.ctx, ast.Load) else known).add(node.id)
            elif isinstance(node, ast.arg):
                known.add(node.arg)
            elif isinstance(node, ast.alias):
                known.add((node.asname or node.name).partition(".")[0])
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                known.add(node.name)
    return used - known


def faults_of_args(wanted: dict[str, str], args: str) -> Iterator[str]:
    """Parameters that Args leaves out, makes up, or gives no shape for."""
    other = TAKEN_OVER.search(" ".join(args.split()))
    told = entries(args)
    if other is not None:
        theirs = entries(sections(attrgetter(other[1])(rg).__doc__).get("Args", ""))
        told = {name: text for name, text in theirs.items() if name in wanted} | told
    yield from (f"Args leaves out {name!r}" for name in wanted if name not in told)
    yield from (f"Args documents {name!r}, which the signature does not have" for name in told if name not in wanted)
    for name, annotation in wanted.items():
        if TENSOR.match(annotation) and name in told and not SHAPE.search(told[name]):
            yield f"Args gives no shape for the tensor {name!r}: ``[N, D]``, or the word scalar"


def faults_of_call(function: Callable, doc: str) -> Iterator[str]:
    """Yield faults of Args, Returns, Raises and the examples of a callable."""
    told = sections(doc)
    yield from faults_of_args(parameters(function), told.get("Args", ""))
    returned = "None" if inspect.isclass(function) else str(inspect.signature(function).return_annotation)
    wanted = "Yields" if "Iterator[" in returned else "Returns"
    if returned != "None" and not told.get(wanted):
        yield f"{wanted} is missing, for {returned}"
    elif TENSOR.match(returned) and not SHAPE.search(told["Returns"]):
        yield "Returns gives no shape for the tensor: ``[N, D]``, or the word scalar"
    if hides_words(told.get("Returns", "")):
        yield "Returns has a colon in its first line, and Sphinx takes what stands before it for a type"
    for name in entries(told.get("Raises", "")):
        if not is_exception(name):
            yield f"Raises names {name!r}, which is no exception"
    for name in sorted(undefined_names(doc)):
        yield f"Example uses {name!r} and does not define it: write rg.{name}, or import it"


def faults(thing: Any) -> Iterator[str]:
    """Yield faults of the docstring of a public class or function."""
    doc = thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__
    if not doc or doc.startswith(f"{thing.__name__}("):  # what a dataclass or a named tuple writes by itself
        yield "there is no docstring"
        return
    told = sections(doc)
    summary, *rest = told[""].splitlines()
    if not summary.endswith((".", ":", ";")) or (rest and rest[0]):
        yield f"the summary must be one line, a sentence, with a blank line after it; it begins {summary!r}"
    yield from faults_of_call(thing, doc)
    if re.search(r"^Source:.*relgraph's own", told[""], re.MULTILINE):
        yield "Source names no source: leave the line out where there is none"
    if ">>>" not in told.get("Example", ""):
        yield "Example is missing, with at least one >>>"


def faults_of_member(cls: type, name: str) -> Iterator[str]:
    """Yield faults of the docstring of a method or property, which may be that of what it overrides."""
    doc = own_doc(cls, name)
    member = inspect.getattr_static(cls, name)
    if not doc:
        yield "there is no docstring"
    elif isinstance(member, property):
        if hides_words(doc):
            yield "there is a colon in the first line, and Sphinx takes what stands before it for a type"
    elif name not in HOOKS:
        yield from faults_of_call(getattr(member, "__func__", member), doc)
