"""Walks the expressions of Python source in the order of execution: occurrences of variables, attributes, calls."""

# Methods are named like the syntax nodes that they visit.
# ruff: noqa: N802

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from relgraph.interop.python.flow import Flow, Links
from relgraph.interop.python.scopes import Scope, arguments_of, scopes_of
from relgraph.interop.python.syntax import SyntaxTree, is_formatted
from relgraph.interop.python.tokens import Tokens

READ, WRITE, ANY, ORDER = range(4)  # a key asks for the last read, write, occurrence or statement

Steps = Generator[Any, None, None]
"""A part of the walk. It yields its inner parts, so that deep nesting needs no deep Python stack."""


class Call(NamedTuple):
    """A call of a variable that may be a function of the same source; heads are tokens of the syntax tree."""

    head: int
    variable: int
    positional: list[int]  # while the number of earlier arguments is known
    named: list[tuple[str, int]]
    on_receiver: bool


class Definition(NamedTuple):
    """A function or class that a variable is bound to."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    receives: bool  # whether the first parameter is the object that the method was called on


class ExpressionWalk(ABC):
    """The part of a walk that handles expressions; its attributes hold what it finds.

    Attributes:
        links: (key, occurrence, occurrence that may have come last before it); a key is 4 · variable + READ, and so on.
        computed: (token of a target, token of a variable read in the value).
        returned: (head of a return or yield, head of the function).
        attributes: (head of an object, token of the attribute's name).
        calls: the calls whose callee is a variable, or an attribute of a method's receiver.
        definitions: the functions and classes that each variable is bound to.
    """

    def __init__(self, tree: ast.Module, tokens: Tokens, syntax: SyntaxTree) -> None:
        self.tokens = tokens
        self.heads = syntax.heads
        self.links: Links = set()
        self.computed: set[tuple[int, int]] = set()
        self.returned: set[tuple[int, int]] = set()
        self.attributes: set[tuple[int, int]] = set()
        self.calls: list[Call] = []
        self.definitions: dict[int, list[Definition]] = {}
        self.scopes = scopes_of(tree)
        self.receivers: dict[Scope, tuple[str, Scope]] = {}
        self.variables: dict[tuple[Scope, str], int] = {}
        self.recorded: list[tuple[int, int]] = []  # everything passed on to later code, in order
        self.reads: list[int] = []  # every read so far
        self.scope = self.scopes[tree]
        self.order = self.variable(self.scope, "")  # no name is empty
        self.function: int | None = None
        self.finals = 0  # open finally clauses: only they see where a return came from
        self.inside: int | None = None  # the token of the f-string that the walk is in

    def variable(self, scope: Scope, name: str) -> int:
        """The number of a scope's variable."""
        return self.variables.setdefault((scope, name), len(self.variables))

    def _head(self, node: ast.AST) -> int:
        return self.heads[node] if self.inside is None else self.inside

    def _token(self, node: ast.AST) -> int:
        return self.tokens.at(node) if self.inside is None else self.inside

    def _record(self, flow: Flow, key: int, token: int) -> None:
        flow.record(key, token)
        self.recorded.append((key, token))

    def _read(self, name: str, token: int, flow: Flow) -> None:
        base = 4 * self.variable(self.scope.home(name), name)
        for kind in (READ, WRITE, ANY):
            flow.ask(base + kind, token)
        self._record(flow, base + READ, token)
        self._record(flow, base + ANY, token)
        self.reads.append(token)

    def _write(self, name: str, token: int, flow: Flow, *, asks: bool = True) -> None:
        base = 4 * self.variable(self.scope.home(name), name)
        for kind in (READ, WRITE) if asks else ():
            flow.ask(base + kind, token)
        self._record(flow, base + WRITE, token)
        self._record(flow, base + ANY, token)

    def _statement(self, node: ast.AST, flow: Flow) -> None:
        key = 4 * self.order + ORDER
        flow.ask(key, self._head(node))
        self._record(flow, key, self._head(node))

    def _compute(self, targets: Sequence[ast.expr], reads: list[int]) -> None:
        waiting = list(targets)
        while waiting:
            target = waiting.pop()
            if isinstance(target, ast.Tuple | ast.List):
                waiting.extend(target.elts)
            elif isinstance(target, ast.Starred | ast.Subscript):
                waiting.append(target.value)
            elif isinstance(target, ast.Name | ast.Attribute):
                token = self.tokens.after(target) - 1 if self.inside is None else self.inside
                self.computed.update((token, read) for read in reads if read != token)

    @abstractmethod
    def _block(self, statements: Sequence[ast.stmt], flow: Flow) -> Steps:
        """Statements in order."""

    def _part(self, part: Any, flow: Flow) -> Steps:
        """An expression, a pattern, or statements in order."""
        return self._block(part, flow) if isinstance(part, list) else self._visit(part, flow)

    def _one_of(self, parts: Sequence[Any], flow: Flow) -> Steps:
        """Only one of several parts."""
        arms = [Flow(self.links) for _ in parts]
        for part, arm in zip(parts, arms, strict=True):
            yield self._part(part, arm)
        flow.then_one_of(arms)

    def _visit(self, node: ast.AST, flow: Flow) -> Steps:
        return getattr(self, f"_{type(node).__name__}", self._children)(node, flow)

    def _children(self, node: ast.AST, flow: Flow) -> Steps:
        inside = self.inside
        if inside is None and is_formatted(node):
            self.inside = self._formatted(node)
        for child in ast.iter_child_nodes(node):
            if child._fields:
                yield self._visit(child, flow)
        self.inside = inside

    def _formatted(self, node: ast.AST) -> int:
        """The first f-string among adjacent strings."""
        first = self.tokens.at(node)
        for token in range(first, self.tokens.after(node)):
            prefix = self.tokens.texts[token].partition("'")[0].partition('"')[0].lower()
            if "f" in prefix or "t" in prefix:
                return token
        return first

    def _Name(self, node: ast.Name, flow: Flow) -> Steps:
        use = self._read if isinstance(node.ctx, ast.Load) else self._write
        use(node.id, self._token(node), flow)
        yield from ()

    def _NamedExpr(self, node: ast.NamedExpr, flow: Flow) -> Steps:
        since = len(self.reads)
        yield self._visit(node.value, flow)
        self._compute([node.target], self.reads[since:])
        scope, self.scope = self.scope, self.scope.binder()
        yield self._visit(node.target, flow)
        self.scope = scope

    def _Attribute(self, node: ast.Attribute, flow: Flow) -> Steps:
        yield self._visit(node.value, flow)
        if self.inside is None:
            self.attributes.add((self._head(node.value), self.tokens.after(node) - 1))

    def _Call(self, node: ast.Call, flow: Flow) -> Steps:
        yield self._children(node, flow)
        variable, on_receiver = self._callee(node.func)
        if variable is not None:
            stars = [number for number, part in enumerate(node.args) if isinstance(part, ast.Starred)]
            positional = [self._head(part) for part in node.args[: stars[0] if stars else None]]
            named = [(part.arg, self._head(part.value)) for part in node.keywords if part.arg is not None]
            self.calls.append(Call(self._head(node), variable, positional, named, on_receiver))

    def _callee(self, node: ast.expr) -> tuple[int | None, bool]:
        if isinstance(node, ast.Name):
            return self.variable(self.scope.home(node.id), node.id), False
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name, around = self.receivers.get(self.scope.home(node.value.id), ("", None))
            if around is not None and name == node.value.id:
                return self.variable(around, node.attr), True
        return None, False

    def _BoolOp(self, node: ast.BoolOp, flow: Flow) -> Steps:
        part = Flow(self.links)
        for value in node.values[:-1]:
            yield self._visit(value, part)
            part.may_jump("short")
        yield self._visit(node.values[-1], part)
        part.add("next", part.take("short"))
        flow.then(part)

    def _If(self, node: ast.If | ast.IfExp, flow: Flow) -> Steps:
        yield self._visit(node.test, flow)
        yield self._one_of((node.body, node.orelse), flow)

    _IfExp = _If

    def _Dict(self, node: ast.Dict, flow: Flow) -> Steps:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None:
                yield self._visit(key, flow)
            yield self._visit(value, flow)

    def _ListComp(self, node: Any, flow: Flow) -> Steps:
        """Evaluated in place, generator expressions too."""
        scope = self.scope
        yield self._clause(node, 0, flow)
        self.scope = scope

    _SetComp = _DictComp = _GeneratorExp = _ListComp

    def _clause(self, node: Any, number: int, flow: Flow) -> Steps:
        clause = node.generators[number]
        since = len(self.reads)
        yield self._visit(clause.iter, flow)
        self.scope = self.scopes[node]
        loop = Flow(self.links)
        loop.may_jump("done")
        self._compute([clause.target], self.reads[since:])
        yield self._visit(clause.target, loop)
        for condition in clause.ifs:
            yield self._visit(condition, loop)
            loop.may_jump("continue")
        if number + 1 < len(node.generators):
            yield self._clause(node, number + 1, loop)
        else:
            for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
                yield self._visit(part, loop)
        close(loop)
        flow.then(loop)

    def _Lambda(self, node: ast.Lambda, flow: Flow) -> Steps:
        return self._function(node, node.body, flow)

    def _function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, body: list[ast.stmt] | ast.expr, flow: Flow
    ) -> Steps:
        """Defaults and annotations first; then the body, as if it ran here and changed nothing."""
        parameters = arguments_of(node.args)
        for part in (*node.args.defaults, *node.args.kw_defaults, *(a.annotation for a in parameters)):
            if part is not None:
                yield self._visit(part, flow)
        before = self.scope, self.order, self.function
        self.scope, self.function = self.scopes[node], self._head(node)
        self.order = self.variable(self.scope, "")
        own = Flow(self.links)
        self._record(own, 4 * self.order + ORDER, self.function)
        for parameter in parameters:
            self._write(parameter.arg, self._token(parameter), own)
        yield self._part(body, own)
        self.scope, self.order, self.function = before
        own.exits = {"next": {}}
        flow.then(own)


def close(loop: Flow) -> None:
    """The end of a loop's body leads back to its start; the exit ``"done"`` leads to the code after it."""
    loop.add("continue", loop.take("next"))
    loop.repeat(loop.take("continue"))
    loop.add("next", loop.take("done"))
