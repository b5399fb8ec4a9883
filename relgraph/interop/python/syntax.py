"""A tree over the tokens of Python source: one token represents each node of the syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from relgraph.interop.python.tokens import Tokens

OWN_PARENTHESES = (ast.Tuple, ast.GeneratorExp, ast.MatchSequence)
STRINGS = ("JoinedStr", "TemplateStr")


@dataclass(frozen=True)
class SyntaxTree:
    """The parent of each token (-1 at the root), and the token that represents each node of the syntax tree."""

    parents: list[int]
    heads: dict[ast.AST, int]


def is_formatted(node: ast.AST) -> bool:
    """Whether a node is an f-string, whose inner nodes have no tokens."""
    return type(node).__name__ in STRINGS


def positioned_children(node: ast.AST) -> Iterator[ast.AST]:
    """The children of a node. Children without a position (arguments, withitem...) are replaced by their children."""
    waiting = [] if is_formatted(node) else [*ast.iter_child_nodes(node)]
    while waiting:
        child = waiting.pop()
        if hasattr(child, "lineno"):
            yield child
        else:
            waiting.extend(ast.iter_child_nodes(child))


def syntax_tree(tree: ast.Module, tokens: Tokens) -> SyntaxTree:
    """The tree over tokens.

    A token belongs to the innermost node around it, and those outside all statements to the statement before. The head
    of a node is its first token that belongs to it, other than parentheses around its first child. A node
    without such a token shares the head of its first child. Everything else of a node is below its head.
    """
    nodes, above, spans = _in_order(tree, tokens)
    owned = _owned(above, spans)
    children: list[list[int]] = [[] for _ in nodes]
    for number, parent in enumerate(above[1:], start=1):
        children[parent].append(number)
    heads = [-1] * len(nodes)
    parents = [-1] * len(tokens.texts)
    for number in reversed(range(len(nodes))):  # children come after their parents
        below = sorted(children[number], key=lambda child: spans[child][0])
        first = below[0] if below else -1
        own = _candidates(nodes[number], owned[number], spans[number], spans[first][1] if below else 0, tokens)
        # no tokens and no child: a source without tokens
        head = own[0] if own else heads[first] if below else (owned[number] or [-1])[0]
        heads[number] = head
        for token in (*owned[number], *(heads[child] for child in below)):
            if token != head:
                parents[token] = head
    return SyntaxTree(parents, dict(zip(nodes, heads, strict=True)))


def _in_order(tree: ast.Module, tokens: Tokens) -> tuple[list[ast.AST], list[int], list[tuple[int, int]]]:
    """All nodes with a position, parents first: the node, the number of its parent, its range of tokens."""
    nodes: list[ast.AST] = []
    above: list[int] = []
    spans: list[tuple[int, int]] = []
    waiting: list[tuple[ast.AST, int]] = [(tree, -1)]
    while waiting:
        node, parent = waiting.pop()
        number = len(nodes)
        nodes.append(node)
        above.append(parent)
        spans.append((0, len(tokens.texts)) if parent < 0 else _span(node, tokens))
        waiting.extend((child, number) for child in positioned_children(node))
    return nodes, above, spans


def _span(node: ast.AST, tokens: Tokens) -> tuple[int, int]:
    first = tokens.at(node)
    decorators = getattr(node, "decorator_list", None)
    if decorators:
        first = min(tokens.at(decorator) for decorator in decorators)
        while tokens.texts[first] != "@":
            first -= 1
    return first, tokens.after(node)


def _owned(above: list[int], spans: list[tuple[int, int]]) -> list[list[int]]:
    """The tokens that belong to each node."""
    owner = [0] * spans[0][1]
    for number, (first, last) in enumerate(spans):
        owner[first:last] = [number] * (last - first)
    begins = {spans[number][0]: number for number, parent in enumerate(above) if parent == 0}
    owned: list[list[int]] = [[] for _ in spans]
    statement = 0
    for token, number in enumerate(owner):
        statement = begins.get(token, statement)
        owned[number or statement].append(token)
    return owned


def _candidates(node: ast.AST, owned: list[int], span: tuple[int, int], child_end: int, tokens: Tokens) -> list[int]:
    """The tokens of a node from its head on."""
    first, last = span
    begin = tokens.at(node) if getattr(node, "decorator_list", None) else first
    own = [token for token in owned if begin <= token < last]
    if own and own[0] == first and tokens.texts[first] == "(" and child_end and not isinstance(node, OWN_PARENTHESES):
        own = [token for token in own if token >= child_end and tokens.texts[token] != ")"]
    return own
