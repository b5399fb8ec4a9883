"""The tokens of Python source as nodes of a graph, and the range of tokens of each part of the syntax tree."""

from __future__ import annotations

import ast
import bisect
import io
import keyword
import tokenize
from dataclasses import dataclass, field

TOKEN_KINDS = ("NAME", "KEYWORD", "NUMBER", "STRING", "OP", "NEWLINE", "INDENT", "DEDENT")
"""The kinds of tokens in the order of their node types. The last three are line ends, indents and dedents."""
LAYOUT = {"NEWLINE": "<newline>", "INDENT": "<indent>", "DEDENT": "<dedent>"}

Position = tuple[int, int]

_DROPPED = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER, tokenize.TYPE_COMMENT}
# Since Python 3.12 an f-string is several tokens (since 3.14 a t-string too). Here it is one token, as before.
_OPENING = {getattr(tokenize, name) for name in ("FSTRING_START", "TSTRING_START") if hasattr(tokenize, name)}
_CLOSING = {getattr(tokenize, name) for name in ("FSTRING_END", "TSTRING_END") if hasattr(tokenize, name)}


@dataclass(frozen=True)
class Tokens:
    """Tokens in order, each with text, kind and start, and the lines of the source."""

    texts: list[str]
    kinds: list[str]
    starts: list[Position]
    lines: list[str]
    columns: dict[int, list[int]] = field(default_factory=dict)

    def at(self, node: ast.AST) -> int:
        """The first token of a node with a position."""
        first = bisect.bisect_left(self.starts, self._position(node.lineno, node.col_offset))  # pyright: ignore[reportAttributeAccessIssue]
        while self.kinds[first] in LAYOUT:  # a dedent is empty, so it starts where the statement starts
            first += 1
        return first

    def after(self, node: ast.AST) -> int:
        """The token after a node with a position."""
        return bisect.bisect_left(self.starts, self._position(node.end_lineno, node.end_col_offset))  # pyright: ignore[reportAttributeAccessIssue]

    def _position(self, line: int, column: int) -> Position:
        """The position of an ast node in characters: ast counts bytes, tokenize counts characters."""
        text = self.lines[line - 1]
        if text.isascii():
            return line, column
        if line not in self.columns:
            bytewise = [number for number, character in enumerate(text) for _ in character.encode()]
            self.columns[line] = [*bytewise, len(text)]
        return line, self.columns[line][column]


def tokens_of(source: str) -> Tokens:
    """The tokens without comments and empty lines; each f-string is one token.

    Raises:
        SyntaxError: source that cannot be cut into tokens.
    """
    tokens = Tokens([], [], [], source.split("\n"))  # not splitlines, which also splits at form feeds
    depth = 0  # nesting of f-strings
    begin = (1, 0)
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in _OPENING:
                begin = begin if depth else token.start
                depth += 1
            elif token.type in _CLOSING:
                depth -= 1
                if not depth:
                    _append(tokens, "STRING", _between(tokens.lines, begin, token.end), begin)
            elif not depth and token.type not in _DROPPED:
                kind = _kind(token)
                _append(tokens, kind, LAYOUT.get(kind, token.string), token.start)
    except tokenize.TokenError as error:
        message, (line, column) = error.args
        raise SyntaxError(message, ("<source>", line, column + 1, None)) from None
    return tokens


def _kind(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME and keyword.iskeyword(token.string):
        return "KEYWORD"
    name = tokenize.tok_name[token.type]
    return name if name in TOKEN_KINDS else "OP"


def _append(tokens: Tokens, kind: str, text: str, start: Position) -> None:
    tokens.kinds.append(kind)
    tokens.texts.append(text)
    tokens.starts.append(start)


def _between(lines: list[str], begin: Position, end: Position) -> str:
    (first, left), (last, right) = begin, end
    if first == last:
        return lines[first - 1][left:right]
    return "\n".join([lines[first - 1][left:], *lines[first : last - 1], lines[last - 1][:right]])
