"""Walks the statements of Python source in the order of execution: branches, loops, jumps, functions and classes."""

# Methods are named like the syntax nodes that they visit.
# ruff: noqa: N802

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from relgraph.interop.python.expressions import Definition, ExpressionWalk, Steps, close
from relgraph.interop.python.flow import Flow, anywhere
from relgraph.interop.python.scopes import arguments_of
from relgraph.interop.python.syntax import SyntaxTree
from relgraph.interop.python.tokens import Tokens

LOOPS = (ast.For, ast.AsyncFor, ast.While)


class Walk(ExpressionWalk):
    """One walk through a module; its attributes hold what it finds."""

    def __init__(self, tree: ast.Module, tokens: Tokens, syntax: SyntaxTree) -> None:
        super().__init__(tree, tokens, syntax)
        _run(self._block(tree.body, Flow(self.links)))

    def _block(self, statements: Sequence[ast.stmt], flow: Flow) -> Steps:
        for statement in statements:
            if not flow.reachable:
                flow = Flow(self.links)  # dead code gets its own flow
            if not isinstance(statement, LOOPS):  # these run once per turn
                self._statement(statement, flow)
            yield self._visit(statement, flow)

    def _Assign(self, node: ast.Assign, flow: Flow) -> Steps:
        since = len(self.reads)
        yield self._visit(node.value, flow)
        self._compute(node.targets, self.reads[since:])
        for target in node.targets:
            yield self._visit(target, flow)

    def _AugAssign(self, node: ast.AugAssign, flow: Flow) -> Steps:
        name = node.target if isinstance(node.target, ast.Name) else None
        if name is None:
            yield self._visit(node.target, flow)
        else:
            self._read(name.id, self.tokens.at(name), flow)
        since = len(self.reads)
        yield self._visit(node.value, flow)
        self._compute([node.target], self.reads[since:])
        if name is not None:
            self._write(name.id, self.tokens.at(name), flow, asks=False)  # the read asked already

    def _AnnAssign(self, node: ast.AnnAssign, flow: Flow) -> Steps:
        since = len(self.reads)
        if node.value is not None:
            yield self._visit(node.value, flow)
            self._compute([node.target], self.reads[since:])
        yield self._visit(node.annotation, flow)
        if node.value is not None or not isinstance(node.target, ast.Name):
            yield self._visit(node.target, flow)

    def _For(self, node: ast.For | ast.AsyncFor, flow: Flow) -> Steps:
        since = len(self.reads)
        yield self._visit(node.iter, flow)
        loop = Flow(self.links)
        self._statement(node, loop)
        loop.may_jump("done")
        self._compute([node.target], self.reads[since:])
        yield self._visit(node.target, loop)
        yield self._body(node, loop)
        flow.then(loop)

    _AsyncFor = _For

    def _While(self, node: ast.While, flow: Flow) -> Steps:
        loop = Flow(self.links)
        self._statement(node, loop)
        yield self._visit(node.test, loop)
        if not (isinstance(node.test, ast.Constant) and node.test.value):
            loop.may_jump("done")
        yield self._body(node, loop)
        flow.then(loop)

    def _body(self, node: ast.For | ast.AsyncFor | ast.While, loop: Flow) -> Steps:
        yield self._block(node.body, loop)
        close(loop)
        broken = loop.take("break")
        yield self._block(node.orelse, loop)
        loop.add("next", broken)

    def _Try(self, node: Any, flow: Flow) -> Steps:
        since = len(self.recorded)
        whole = Flow(self.links)
        self.finals += bool(node.finalbody)
        yield self._block(node.body, whole)
        whole.exits["raise"] = anywhere(self.recorded[since:])
        yield self._block(node.orelse, whole)
        arms: list[Flow] = []
        for handler in node.handlers:
            arms.append(Flow(self.links))
            yield self._visit(handler, arms[-1])
        if arms:
            whole.then_one_of(arms, "raise")
        whole.take("raise")
        self.finals -= bool(node.finalbody)
        if node.finalbody:
            last = Flow(self.links)
            raised = anywhere(self.recorded[since:])
            yield self._block(node.finalbody, last)
            whole.then_whatever_happens(last, raised)
        flow.then(whole)

    _TryStar = _Try

    def _ExceptHandler(self, node: ast.ExceptHandler, flow: Flow) -> Steps:
        self._statement(node, flow)
        if node.type is not None:
            yield self._visit(node.type, flow)
            if node.name is not None:
                self._write(node.name, self.tokens.texts.index("as", self.tokens.after(node.type)) + 1, flow)
        yield self._block(node.body, flow)

    def _With(self, node: ast.With | ast.AsyncWith, flow: Flow) -> Steps:
        for item in node.items:
            since = len(self.reads)
            yield self._visit(item.context_expr, flow)
            if item.optional_vars is not None:
                self._compute([item.optional_vars], self.reads[since:])
                yield self._visit(item.optional_vars, flow)
        yield self._block(node.body, flow)

    _AsyncWith = _With

    def _Match(self, node: ast.Match, flow: Flow) -> Steps:
        yield self._visit(node.subject, flow)
        whole = Flow(self.links)
        for case in node.cases:
            arm = Flow(self.links)
            yield self._visit(case.pattern, arm)
            if case.guard is not None:
                yield self._visit(case.guard, arm)
            if case.guard is not None or not (isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None):
                arm.add("miss", {})
                arm.may_jump("miss")
            yield self._block(case.body, arm)
            arm.jump("done")
            whole.then(arm)
            whole.add("next", whole.take("miss"))
        whole.add("next", whole.take("done"))
        flow.then(whole)

    def _MatchAs(self, node: ast.MatchAs | ast.MatchStar, flow: Flow) -> Steps:
        pattern = getattr(node, "pattern", None)
        if pattern is not None:
            yield self._visit(pattern, flow)
        if node.name is not None:
            self._write(node.name, self.tokens.after(node) - 1, flow)

    _MatchStar = _MatchAs

    def _MatchMapping(self, node: ast.MatchMapping, flow: Flow) -> Steps:
        yield self._children(node, flow)
        if node.rest is not None:
            token = self.tokens.after(node)
            while self.tokens.texts[token] != "**":
                token -= 1
            self._write(node.rest, token + 1, flow)

    def _MatchOr(self, node: ast.MatchOr, flow: Flow) -> Steps:
        return self._one_of(node.patterns, flow)

    def _Return(self, node: ast.Return | ast.Yield | ast.YieldFrom, flow: Flow) -> Steps:
        if node.value is not None:
            yield self._visit(node.value, flow)
        if self.function is not None:
            self.returned.add((self._head(node), self.function))
        if isinstance(node, ast.Return):
            flow.jump("return") if self.finals else flow.take("next")

    _Yield = _YieldFrom = _Return

    def _Raise(self, node: ast.Raise, flow: Flow) -> Steps:
        yield self._children(node, flow)
        flow.take("next")

    def _Break(self, node: ast.Break | ast.Continue, flow: Flow) -> Steps:
        flow.jump("break" if isinstance(node, ast.Break) else "continue")
        yield from ()

    _Continue = _Break

    def _Assert(self, node: ast.Assert, flow: Flow) -> Steps:
        yield self._visit(node.test, flow)
        if node.msg is not None:
            failed = Flow(self.links)
            yield self._visit(node.msg, failed)
            failed.take("next")
            flow.then_one_of([failed, Flow(self.links)])

    def _alias(self, node: ast.alias, flow: Flow) -> Steps:
        if node.name != "*":
            token = self.tokens.at(node) if node.asname is None else self.tokens.after(node) - 1
            self._write(node.asname or node.name.partition(".")[0], token, flow)
        yield from ()

    def _FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, flow: Flow) -> Steps:
        around = self.scope
        static = {"staticmethod"} & {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
        parameters = arguments_of(node.args)
        receives = around.kind == "class" and not static and bool(parameters)
        if receives:
            self.receivers[self.scopes[node]] = parameters[0].arg, around
        for decorator in node.decorator_list:
            yield self._visit(decorator, flow)
        yield self._type_parameters(node, flow)
        if node.returns is not None:
            yield self._visit(node.returns, flow)
        yield self._function(node, node.body, flow)
        self.scope = around
        self._define(node, flow, receives)

    _AsyncFunctionDef = _FunctionDef

    def _ClassDef(self, node: ast.ClassDef, flow: Flow) -> Steps:
        around = self.scope
        for decorator in node.decorator_list:
            yield self._visit(decorator, flow)
        yield self._type_parameters(node, flow)
        for part in (*node.bases, *node.keywords):
            yield self._visit(part, flow)
        self.scope = self.scopes[node]
        yield self._block(node.body, flow)
        self.scope = around
        self._define(node, flow, receives=False)

    def _define(self, node: Any, flow: Flow, receives: bool) -> None:
        name = self.tokens.at(node) + (2 if isinstance(node, ast.AsyncFunctionDef) else 1)
        variable = self.variable(self.scope.home(node.name), node.name)
        self.definitions.setdefault(variable, []).append(Definition(node, receives))
        self._write(node.name, name, flow)

    def _type_parameters(self, node: Any, flow: Flow) -> Steps:
        """Python 3.12 and newer: type parameters have their own scope, which stays open."""
        self.scope = self.scopes.get((node, "type_params"), self.scope)
        for parameter in getattr(node, "type_params", ()):
            stars = 0 if type(parameter).__name__ == "TypeVar" else 1
            yield self._children(parameter, flow)
            self._write(parameter.name, self.tokens.at(parameter) + stars, flow)

    def _TypeAlias(self, node: Any, flow: Flow) -> Steps:
        around = self.scope
        yield self._type_parameters(node, flow)
        yield self._visit(node.value, flow)
        self.scope = around
        yield self._visit(node.name, flow)


def _run(steps: Steps) -> None:
    """Run nested steps without recursion."""
    waiting = [steps]
    while waiting:
        try:
            waiting.append(next(waiting[-1]))
        except StopIteration:
            waiting.pop()
