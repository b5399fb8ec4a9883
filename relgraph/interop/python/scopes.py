"""The variable that a name means in Python source: scopes of functions, classes and comprehensions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Key = ast.AST | tuple[ast.AST, str]


class Scope:
    """The names that one function, class, comprehension or module binds."""

    def __init__(self, kind: str, parent: Scope | None) -> None:
        self.kind = kind
        self.parent = parent
        self.module: Scope = self if parent is None else parent.module
        self.bound: set[str] = set()
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.variables: dict[str, Scope] = {}  # scopes of the names looked up so far

    def home(self, name: str) -> Scope:
        """The scope whose variable ``name`` means here; the module if no scope binds it."""
        if name not in self.variables:
            self.variables[name] = self._home(name)
        return self.variables[name]

    def _home(self, name: str) -> Scope:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.globals:
                break
            if name in scope.bound and name not in scope.nonlocals and (scope.kind != "class" or scope is self):
                return scope
            scope = scope.parent
        return self.module

    def binder(self) -> Scope:
        """The scope that a walrus binds in: the nearest one that is not a comprehension."""
        scope = self
        while scope.kind == "comprehension" and scope.parent is not None:
            scope = scope.parent
        return scope


def arguments_of(arguments: ast.arguments) -> list[ast.arg]:
    """All parameters in the order of the source."""
    return [part for part in ast.iter_child_nodes(arguments) if isinstance(part, ast.arg)]


def scopes_of(tree: ast.Module) -> dict[Key, Scope]:
    """The scope that each function, class, comprehension and module opens.

    Type parameters (Python 3.12) have their own scope around their statement, ``(node, "type_params")``.
    """
    module = Scope("module", None)
    found: dict[Key, Scope] = {tree: module}
    waiting: list[tuple[ast.AST, Scope]] = [(statement, module) for statement in tree.body]
    while waiting:
        node, scope = waiting.pop()
        _bind(node, scope)
        waiting.extend(_parts(node, scope, found))
    return found


def _bind(node: Any, scope: Scope) -> None:
    """Enter the names that a node binds."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            scope.bound.add(name)
        case ast.NamedExpr(target=ast.Name(id=name)):
            scope.binder().bound.add(name)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            scope.bound.add(name)
        case ast.alias(name=name, asname=other):
            scope.bound.add(other or name.partition(".")[0])
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            scope.bound.add(name)
        case ast.MatchMapping(rest=str(name)):
            scope.bound.add(name)
        case ast.Global(names=names):
            scope.globals.update(names)
        case ast.Nonlocal(names=names):
            scope.nonlocals.update(names)


def _parts(node: Any, scope: Scope, found: dict[Key, Scope]) -> Iterator[tuple[ast.AST, Scope]]:
    """The children of a node, each with its scope; names are entered into the scopes that the node opens."""
    outside = scope
    scope = _with_type_parameters(node, scope, found)
    if isinstance(node, FunctionNode | ast.ClassDef):
        own = found[node] = Scope("class" if isinstance(node, ast.ClassDef) else "function", scope)
        if not isinstance(node, ast.ClassDef):
            own.bound.update(argument.arg for argument in arguments_of(node.args))
        inside = {id(part) for part in ([node.body] if isinstance(node, ast.Lambda) else node.body)}
        yield from ((part, own if id(part) in inside else scope) for part in ast.iter_child_nodes(node))
    elif isinstance(node, Comprehension):
        own = found[node] = Scope("comprehension", scope)
        first, *clauses = node.generators
        yield first.iter, scope
        results = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        yield from ((part, own) for part in (first.target, *first.ifs, *clauses, *results))
    elif isinstance(node, ast.NamedExpr):
        yield node.value, scope  # its target is bound elsewhere
    elif type(node).__name__ == "TypeAlias":
        yield node.name, outside
        yield node.value, scope
    else:
        yield from ((part, scope) for part in ast.iter_child_nodes(node))


def _with_type_parameters(node: Any, scope: Scope, found: dict[Key, Scope]) -> Scope:
    parameters = getattr(node, "type_params", None)
    if not parameters:
        return scope
    around = found[node, "type_params"] = Scope("function", scope)
    around.bound.update(parameter.name for parameter in parameters)
    return around
