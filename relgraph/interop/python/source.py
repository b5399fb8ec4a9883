"""Python source as a graph over its tokens: syntax, the order of execution, where variables are read and written.

- :func:`~relgraph.interop.python.read`: the graph of a module, a function or a class.
- :class:`~relgraph.interop.python.SourceGraph`: tokens and graph.
- :data:`~relgraph.interop.python.EDGE_TYPES`: the names of the edge types.
- :data:`~relgraph.interop.python.TOKEN_KINDS`: the names of the node types.

It needs no extra. It parses the source and never runs it.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch

from relgraph.arguments import check
from relgraph.arguments.brief import brief_fields
from relgraph.arguments.public import lists_public
from relgraph.graphs import Graph
from relgraph.interop.python.expressions import ANY, ORDER, READ, WRITE, Call, Definition
from relgraph.interop.python.syntax import syntax_tree
from relgraph.interop.python.tokens import TOKEN_KINDS, Position, Tokens, tokens_of
from relgraph.interop.python.walk import Walk
from relgraph.labelers.code import GREAT_TYPES

__all__ = ["EDGE_TYPES", "TOKEN_KINDS", "SourceGraph", "read"]
__dir__ = lists_public(globals())

EDGE_TYPES = (*GREAT_TYPES, "NEXT_USE")
"""The names of the edge types of :func:`~relgraph.interop.python.read`: GREAT's eleven, and ``NEXT_USE``."""

Edges = dict[str, set[tuple[int, int]]]


@final
@dataclass(frozen=True)
class SourceGraph:
    r"""The tokens of Python source and the graph over them.

    The source of an edge is the key, its target the query; :func:`~relgraph.interop.python.read` lists the edges.

    Source: edge types of Hellendoorn et al. 2020 and Allamanis et al. 2018.

    Args:
        tokens: the text of every node; the ends of lines and blocks are ``<newline>``, ``<indent>`` and ``<dedent>``.
        kinds: the kind of every node, of :data:`~relgraph.interop.python.TOKEN_KINDS`.
        positions: where each token begins: line from 1, column in characters from 0.
        graph: a :class:`~relgraph.Graph`; the types of edges index :data:`~relgraph.interop.python.EDGE_TYPES`, the
            types of nodes index :data:`~relgraph.interop.python.TOKEN_KINDS`.

    Example:
        >>> from relgraph.interop import python
        >>> source = python.read("x = 1\nprint(x)")
        >>> source.tokens
        ('x', '=', '1', '<newline>', 'print', '(', 'x', ')', '<newline>')
        >>> source.edges("LAST_WRITE")
        [(6, 0)]
    """

    tokens: tuple[str, ...]
    kinds: tuple[str, ...]
    positions: tuple[Position, ...]
    graph: Graph

    def __repr__(self) -> str:
        return brief_fields(self, "tokens", "kinds", "graph")

    def edges(self, name: str) -> list[tuple[int, int]]:
        """The edges of one type, (source, target).

        Args:
            name: one of :data:`~relgraph.interop.python.EDGE_TYPES`.

        Returns:
            A list of pairs of token numbers.

        Raises:
            ValueError: no such type.

        Example:
            >>> from relgraph.interop import python
            >>> python.read("f(x)").edges("NEXT_SYNTAX")
            [(0, 1), (1, 2), (2, 3), (3, 4)]
        """
        number = EDGE_TYPES.index(check.choice("name", name, EDGE_TYPES))
        sources, targets = self.graph.of_type(number).edge_index.tolist()
        return list(zip(sources, targets, strict=True))

    def only(self, nodes: Iterable[int]) -> SourceGraph:
        r"""Keep some of the tokens, in their order, and the edges between them, such as a function out of its module.

        Args:
            nodes: the numbers of the tokens to keep, ascending.

        Returns:
            A :class:`~relgraph.interop.python.SourceGraph` of these tokens, numbered from 0.

        Raises:
            ValueError: nodes that do not ascend or are out of range.

        Example:
            >>> from relgraph.interop import python
            >>> python.read("x = 1\nprint(x)").only([0, 6]).edges("LAST_WRITE")
            [(1, 0)]
        """
        count = len(self.tokens)
        chosen = [
            check.integer("nodes", node)
            for node in check.items("nodes", nodes, "numbers of tokens", most=max(count, check.MOST_LABELS))
        ]
        if any(a >= b for a, b in pairwise(chosen)) or (chosen and (chosen[0] < 0 or chosen[-1] >= count)):
            raise ValueError(f"nodes must ascend within [0, {count}), got {_shown(chosen)}")
        new = torch.full((count,), -1)
        new[chosen] = torch.arange(len(chosen))
        assert self.graph.edge_type is not None
        assert self.graph.node_type is not None
        edges = new[self.graph.edge_index]
        inside = (edges >= 0).all(0)
        return SourceGraph(
            tuple(self.tokens[node] for node in chosen),
            tuple(self.kinds[node] for node in chosen),
            tuple(self.positions[node] for node in chosen),
            Graph(
                edges[:, inside],
                len(chosen),
                edge_type=self.graph.edge_type[inside],
                node_type=self.graph.node_type[chosen],
                edge_types=self.graph.edge_types,
                node_types=self.graph.node_types,
            ),
        )


def read(source: str) -> SourceGraph:
    r"""Read the graph of a module, or of a function or class that begins in the first column.

    Nodes are the tokens in order, without comments and empty lines; an f-string is one token on every version
    of Python. Edges have the direction of the papers that named them, from source (key) to target (query):

    ==================== ==========================================================================================
    CFG_NEXT             statement → a statement that may come next in its function; ``def`` → the first of its body
    LAST_READ            occurrence of a variable → each that may be the last read of it before
    LAST_WRITE           occurrence of a variable → each that may be the last write to it before
    COMPUTED_FROM        target of an assignment (``for`` and ``with`` too) → each variable read in its value
    RETURNS_TO           ``return`` or ``yield`` → its function
    FORMAL_ARG_NAME      argument of a call → the parameter that takes it, of a function in the same source
    FIELD                object → the name of its attribute
    SYNTAX               parent → child in a tree that holds every token
    NEXT_SYNTAX          token → the next token
    LAST_LEXICAL_USE     identifier → the same identifier's last appearance in the text before
    CALLS                call → the function or class of the same source that is called
    NEXT_USE             occurrence of a variable → each read that may meet it with no occurrence between
    ==================== ==========================================================================================

    *Heads.* In edges, one token represents each statement, call, function, object or argument: its head in the syntax
    tree. The head is the first token that belongs to it and to no part of it (``=`` of an assignment, ``(`` of a
    call, ``def``, ``.``); if there is no such token, it is the head of its first part. Parentheses around a part do not
    count. The first statement's head is the root of a module; the other statements, and the ends of lines between them,
    are its descendants.

    *Paths.* "May" means along any path through branches, loops, ``match``, ``and``/``or``, comprehensions and
    ``finally``; any statement of a ``try`` body may raise. An occurrence in a loop may be its own last read. The
    values of conditions are ignored, except for ``while True``. ``del`` writes, and ``x += 1`` reads and then writes.

    *Scopes.* A name means the same variable as in Python, so a name that a nested function or a comprehension binds
    again is another variable. A function's body continues from the place of its definition: it sees the values that
    outer variables have there, and its writes to them are not visible outside. Calls are followed by name: to every
    function that the called variable is bound to, and from ``self.method()`` to methods of the same class; classes
    take arguments by their ``__init__``.

    Source: Hellendoorn et al. 2020 (GREAT) name the first eleven types, Allamanis et al. 2018 some of them;
    relgraph adds ``NEXT_USE``.

    Args:
        source: text. Cut-out methods need ``textwrap.dedent`` first; ``tokenize.open`` reads files in any encoding.

    Returns:
        A :class:`~relgraph.interop.python.SourceGraph`.

    Raises:
        SyntaxError: source that the Python that runs this cannot parse, or null characters; with line and column.
        ValueError: text that is not Unicode, or nesting (of brackets, or of a chain of operators, attributes or
            ``elif``) beyond the limit of Python's parser, hundreds to thousands of levels, depending on its version.

    Example:
        >>> from relgraph.interop import python
        >>> loop = python.read("while a:\n    a = f(a)")
        >>> [(loop.tokens[i], i, j) for i, j in loop.edges("LAST_WRITE")]
        [('a', 1, 5), ('a', 5, 5), ('a', 9, 5)]
    """
    text = _text(source)
    tree = _parsed(text)
    tokens = tokens_of(text)
    syntax = syntax_tree(tree, tokens)
    walk = Walk(tree, tokens, syntax)
    edges: Edges = {name: set() for name in EDGE_TYPES}
    _add_flow(edges, walk)
    edges["COMPUTED_FROM"] = walk.computed
    edges["RETURNS_TO"] = walk.returned
    edges["FIELD"] = walk.attributes
    edges["SYNTAX"] = {(parent, child) for child, parent in enumerate(syntax.parents) if parent >= 0}
    edges["NEXT_SYNTAX"] = {(token, token + 1) for token in range(len(tokens.texts) - 1)}
    edges["LAST_LEXICAL_USE"] = _lexical(tokens)
    for call in walk.calls:
        _add_call(edges, call, walk)
    return SourceGraph(tuple(tokens.texts), tuple(tokens.kinds), tuple(tokens.starts), _graph(edges, tokens.kinds))


def _text(source: str) -> str:
    """Source as text with one kind of line end."""
    if not isinstance(source, str):
        raise TypeError(f"source must be text, got {type(source).__name__}")
    if "\0" in source:
        raise _at(source[: source.index("\0")], "source must be free of null characters, got one")
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"source must be Unicode text, got a surrogate at character {error.start}") from None
    return source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _at(before: str, message: str) -> SyntaxError:
    """An error at the line and column where ``before`` ends."""
    lines = before.split("\n")
    return SyntaxError(message, ("<source>", len(lines), len(lines[-1]) + 1, None))


def _parsed(source: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's warnings about the source
            return ast.parse(source)
    except (RecursionError, MemoryError) as error:
        raise ValueError(
            f"source must not be nested more deeply than Python's parser allows, got {type(error).__name__}: {error}"
        ) from None


def _add_flow(edges: Edges, walk: Walk) -> None:
    backward = {READ: edges["LAST_READ"], WRITE: edges["LAST_WRITE"]}
    forward = {ANY: edges["NEXT_USE"], ORDER: edges["CFG_NEXT"]}
    for key, later, earlier in walk.links:
        if key % 4 in backward:
            backward[key % 4].add((later, earlier))
        else:
            forward[key % 4].add((earlier, later))


def _lexical(tokens: Tokens) -> set[tuple[int, int]]:
    last: dict[str, int] = {}
    found: set[tuple[int, int]] = set()
    for token, (text, kind) in enumerate(zip(tokens.texts, tokens.kinds, strict=True)):
        if kind == "NAME":
            if text in last:
                found.add((token, last[text]))
            last[text] = token
    return found


def _add_call(edges: Edges, call: Call, walk: Walk) -> None:
    for definition in walk.definitions.get(call.variable, ()):
        edges["CALLS"].add((call.head, walk.heads[definition.node]))
        if isinstance(definition.node, ast.ClassDef):
            makers = walk.definitions.get(walk.variable(walk.scopes[definition.node], "__init__"), ())
            for maker in makers:
                _add_arguments(edges, call, maker, walk, skip=1)
        else:
            _add_arguments(edges, call, definition, walk, skip=int(call.on_receiver and definition.receives))


def _add_arguments(edges: Edges, call: Call, definition: Definition, walk: Walk, skip: int) -> None:
    if isinstance(definition.node, ast.ClassDef):
        return
    arguments = definition.node.args
    by_place = [*arguments.posonlyargs, *arguments.args][skip:]
    by_name = {parameter.arg: parameter for parameter in (*arguments.args, *arguments.kwonlyargs)}
    taken = [(head, by_place[n] if n < len(by_place) else arguments.vararg) for n, head in enumerate(call.positional)]
    taken += [(head, by_name.get(name, arguments.kwarg)) for name, head in call.named]
    found = ((head, walk.tokens.at(parameter)) for head, parameter in taken if parameter is not None)
    edges["FORMAL_ARG_NAME"].update(found)


def _graph(edges: Edges, kinds: Sequence[str]) -> Graph:
    """Types in order, and the edges of each by source and target."""
    listed = [sorted(edges[name]) for name in EDGE_TYPES]
    pairs = [pair for several in listed for pair in several]
    counts = torch.tensor([len(several) for several in listed])
    return Graph(
        torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T.contiguous(),
        len(kinds),
        edge_type=torch.arange(len(EDGE_TYPES)).repeat_interleave(counts),
        node_type=torch.tensor([TOKEN_KINDS.index(kind) for kind in kinds], dtype=torch.int64),
        edge_types=EDGE_TYPES,
        node_types=TOKEN_KINDS,
    )


def _shown(numbers: list[int]) -> str:
    return str(numbers) if len(numbers) <= 8 else f"{numbers[:8]!s}..."
