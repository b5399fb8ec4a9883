"""The functions of Python's own standard library as data for the variable-misuse task.

A function is a list of lexical tokens. One use of a local variable is hidden, and the question is which of the
function's local variables belongs there (Allamanis, Brockschmidt, Khademi 2018; Hellendoorn et al. 2020). Training and
test functions come from different files, and no function body occurs twice. Settings are chosen on validation
functions: training functions from files that are held out while choosing.
"""

from __future__ import annotations

import ast
import bisect
import gc
import hashlib
import io
import random
import re
import sysconfig
import tokenize
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

SKIPPED = {"__pycache__", "dist-packages", "ensurepip", "idlelib", "lib-dynload", "lib2to3", "site-packages", "test"}
SKIPPED |= {"tests", "turtledemo"}
RECEIVERS = {"self", "cls"}  # they would nearly always answer "which variable comes before .x"
HOLE = "<hole>"
KEPT_NUMBERS = {"0", "1", "2"}
LAYOUT = {tokenize.NEWLINE: "<newline>", tokenize.INDENT: "<indent>", tokenize.DEDENT: "<dedent>"}
DROPPED = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER, tokenize.TYPE_COMMENT}
FSTRING_START = getattr(tokenize, "FSTRING_START", -1)  # from Python 3.12 on an f-string is several tokens
FSTRING_END = getattr(tokenize, "FSTRING_END", -1)

Position = tuple[int, int]
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """One function as tokens, with the places of its local variables.

    Attributes:
        path: the file, relative to the standard library.
        name: the function's name.
        tokens: its lexical tokens; strings, long numbers and layout become ``<str>``, ``<num>``, ``<newline>``...
        variables: for each token the index of its local variable, or -1.
        names: the local variables, in order of first appearance.
        uses: positions of the tokens that may be hidden: reads of a variable that also occurs elsewhere.
        source: its lines in the file, including their indentation and the docstring.
        places: where every token begins in ``source``: line and column in characters, both from 0.
        order: for each token its index among the tokens of ``source``, which include the docstring's.
    """

    path: str
    name: str
    tokens: tuple[str, ...]
    variables: tuple[int, ...]
    names: tuple[str, ...]
    uses: tuple[int, ...]
    source: str = field(repr=False)
    places: tuple[Position, ...] = field(repr=False)
    order: tuple[int, ...] = field(repr=False)


@dataclass(frozen=True)
class Sizes:
    """Which functions to take: by number of tokens, and by number of variables to choose from.

    If ``candidates`` is 0, a function needs no variable that may be hidden.
    """

    shortest: int = 20
    longest: int = 160
    candidates: int = 2


def load(
    sizes: Sizes | None = None, root: Path | None = None, *, validation: bool = False, top: bool = False
) -> tuple[list[Function], list[Function]]:
    """The training and the test functions of the standard library of the Python that runs this.

    With ``validation``, validation functions replace the test functions, which are then not read at all, and the other
    training functions remain. With ``top``, only modules outside packages are read.

    Raises:
        FileNotFoundError: there are no functions, as in a Python that keeps its library in an archive.
    """
    sizes = sizes or Sizes()
    root = root or Path(sysconfig.get_paths()["stdlib"])
    seen: set[tuple[str, ...]] = set()
    train: list[Function] = []
    test: list[Function] = []
    with no_collection():
        for path in source_files(root):
            relative = path.relative_to(root).as_posix()
            if (validation and is_test_file(relative)) or (top and "/" in relative):
                continue
            part = test if (is_validation_file if validation else is_test_file)(relative) else train
            for function, body in read_functions(path, relative, sizes):
                if body not in seen:
                    seen.add(body)
                    part.append(function)
    if not train or not test:
        raise FileNotFoundError(f"too few functions of {sizes} below {root}")
    return train, test


@contextmanager
def no_collection() -> Iterator[None]:
    """Turn garbage collection off inside: it took a third of the time, and syntax trees and tokens have no cycles."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def source_files(root: Path) -> Iterator[Path]:
    """All modules below ``root`` except tests and third-party packages, in a fixed order."""
    for path in sorted(root.rglob("*.py")):
        if not SKIPPED & set(path.relative_to(root).parts[:-1]):
            yield path


def is_test_file(relative: str) -> bool:
    """Whether a file is for testing; only its path decides."""
    return hashlib.sha256(relative.encode()).digest()[0] % 5 == 0


def is_validation_file(relative: str) -> bool:
    """Whether a training file is held out while settings are chosen; only its path decides."""
    return not is_test_file(relative) and hashlib.sha256(relative.encode()).digest()[1] % 5 == 0


def read_functions(path: Path, relative: str, sizes: Sizes) -> Iterator[tuple[Function, tuple[str, ...]]]:
    """The functions of a file that fit, each with the tokens of its body; none if the file cannot be read.

    A function inside another function belongs to the outer one.
    """
    try:
        with tokenize.open(path) as file:
            source = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # compiler warnings about other people's code
            tree = ast.parse(source)
        tokens = _Tokens(source)
    except (OSError, SyntaxError, UnicodeError, ValueError, tokenize.TokenError, RecursionError, MemoryError):
        return
    for node in _outer_functions(tree):
        kept, body = tokens.of_function(node)
        if sizes.shortest <= len(kept) <= sizes.longest and body:
            function = _function(node, tokens, kept, relative)
            if not sizes.candidates or (function.uses and len(function.names) >= sizes.candidates):
                yield function, tuple(tokens.texts[at] for at in body)


class _Tokens:
    """The tokens of a file, which can be cut by position."""

    def __init__(self, source: str) -> None:
        self.lines = source.split("\n")  # not splitlines, because a form feed does not end a line here
        self.starts: list[Position] = []
        self.texts: list[str] = []
        inside = 0  # depth of nested f-strings
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type not in DROPPED and not inside:
                self.starts.append(token.start)
                self.texts.append(_text(token))
            inside += (token.type == FSTRING_START) - (token.type == FSTRING_END)

    def position(self, line: int, column: int) -> Position:
        """The position of an ast node: ast counts bytes, tokenize counts characters."""
        text = self.lines[line - 1]
        return line, column if text.isascii() else len(text.encode()[:column].decode())

    def span(self, node: ast.stmt) -> range:
        """The tokens of a statement, without the line's end."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first = bisect.bisect_left(self.starts, self.position(node.lineno, node.col_offset))
        last = bisect.bisect_left(self.starts, self.position(node.end_lineno, node.end_col_offset))
        while self.texts[first] in LAYOUT.values():  # a dedent has no width, so it has the position of the statement
            first += 1
        return range(first, last)

    def of_function(self, node: FunctionNode) -> tuple[list[int], list[int]]:
        """The tokens of a function and of its body, without the docstring."""
        everything = self.span(node)
        kept = list(everything)
        body = node.body
        if ast.get_docstring(node, clean=False) is not None:
            gone = self.span(body[0])
            kept = [at for at in kept if not gone.start <= at <= gone.stop]  # including the line's end
            body = body[1:]
        first = self.span(body[0]).start if body else everything.stop
        return kept, [at for at in kept if at >= first]


def _text(token: tokenize.TokenInfo) -> str:
    if token.type in LAYOUT:
        return LAYOUT[token.type]
    if token.type in (tokenize.STRING, FSTRING_START):
        return "<str>"
    if token.type == tokenize.NUMBER and token.string not in KEPT_NUMBERS:
        return "<num>"
    return token.string


def _outer_functions(tree: ast.Module) -> Iterator[FunctionNode]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, FunctionNode):
            yield node
        elif not isinstance(node, ast.expr):  # expressions contain no function
            waiting.extend(reversed(list(ast.iter_child_nodes(node))))


def _function(node: FunctionNode, tokens: _Tokens, kept: list[int], relative: str) -> Function:
    where = {tokens.starts[at]: index for index, at in enumerate(kept)}
    texts = tuple(tokens.texts[at] for at in kept)
    source = "\n".join(tokens.lines[node.lineno - 1 : node.end_lineno])
    places = tuple((line - node.lineno, column) for line, column in (tokens.starts[at] for at in kept))
    order = tuple(at - kept[0] for at in kept)
    return Function(relative, node.name, texts, *_variables(node, tokens, where, texts), source, places, order)


def _variables(
    node: ast.AST, tokens: _Tokens, where: dict[Position, int], texts: Sequence[str]
) -> tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...]]:
    """The variable of every token, the variables' names, and the reads that may be hidden."""
    bound: set[str] = set()
    outer: set[str] = set(RECEIVERS)
    found: dict[int, str] = {}
    reads: set[int] = set()
    for part in _walk(node):
        if isinstance(part, ast.Global | ast.Nonlocal):
            outer.update(part.names)
        if not isinstance(part, ast.Name | ast.arg):
            continue
        name = part.id if isinstance(part, ast.Name) else part.arg
        at = where.get(tokens.position(part.lineno, part.col_offset), -1)
        if at < 0 or texts[at] != name:
            continue
        found[at] = name
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            reads.add(at)
        elif isinstance(part, ast.arg) or isinstance(part.ctx, ast.Store):
            bound.add(name)
    count = Counter(found.values())
    names = tuple(dict.fromkeys(found[at] for at in sorted(found) if found[at] in bound - outer))
    index = {name: number for number, name in enumerate(names)}
    variables = tuple(index.get(found.get(at, ""), -1) for at in range(len(texts)))
    return variables, names, tuple(at for at in sorted(reads) if variables[at] >= 0 and count[found[at]] > 1)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below ``node``, but none inside f-strings: each of them is one token here."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        yield part
        if not isinstance(part, ast.JoinedStr):
            waiting.extend(ast.iter_child_nodes(part))


def subtokens(token: str) -> list[str]:
    """The words of an identifier, ``"maxLineLength_2" -> ["max", "line", "length", "2"]``; other tokens whole."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+", token) if token.isidentifier() else []
    return [word.lower() for word in words] or [token]


class Vocabulary:
    """Ids for the words of tokens; 0 means "no word".

    Words with fewer than ``LEAST`` occurrences in the given functions share ``SPARE`` ids by a hash, so that two
    unknown names nearly always get different ids.
    """

    LEAST, SPARE, WIDTH = 3, 256, 4

    def __init__(self, functions: Sequence[Function]) -> None:
        count = Counter(word for function in functions for token in function.tokens for word in subtokens(token))
        known = [HOLE, *(word for word, times in count.most_common() if times >= self.LEAST)]
        self.ids = {word: number for number, word in enumerate(known, start=1)}

    def __len__(self) -> int:
        return 1 + len(self.ids) + self.SPARE

    def encode(self, token: str) -> list[int]:
        """The ids of a token's first words, padded with zeros."""
        ids = [self._id(word) for word in subtokens(token)[: self.WIDTH]]
        return ids + [0] * (self.WIDTH - len(ids))

    def _id(self, word: str) -> int:
        unknown = 1 + len(self.ids) + zlib.crc32(word.encode()) % self.SPARE
        return self.ids.get(word, unknown)


def guesses(function: Function, hole: int) -> dict[str, int]:
    """The answers of rules that learn nothing and only know where variables occur."""
    places: dict[int, list[int]] = {}
    for at, variable in enumerate(function.variables):
        if variable >= 0 and at != hole:
            places.setdefault(variable, []).append(at)
    last = {variable: max((at for at in ats if at < hole), default=-1) for variable, ats in places.items()}
    return {
        "most often seen": max(places, key=lambda variable: len(places[variable])),
        "least often seen": min(places, key=lambda variable: len(places[variable])),
        "latest before the hole": max(last, key=last.__getitem__),
        "longest not seen": min(last, key=last.__getitem__),
    }


Question = tuple[int, int]
"""A function's number and the position of the token to hide."""


@dataclass(frozen=True)
class Batch:
    """Questions of similar length, padded. ``words`` and ``variables`` do not reveal what was hidden.

    Attributes:
        words: ``[B, N, W]``, the words of every token, 0 for none.
        padding: ``[B, N]``, bool, True where there is no token.
        variables: ``[B, N]``, the index of each token's variable, or -1, also at the hole.
        hole: ``[B]``, the position of the hidden token.
        target: ``[B]``, the index of the hidden variable.
        functions: the B functions, for labels that need more than tokens.
    """

    words: Tensor
    padding: Tensor
    variables: Tensor
    hole: Tensor
    target: Tensor
    functions: tuple[Function, ...]


class Questions:
    """Functions with their tokens as ids; draws questions and makes batches from them."""

    def __init__(self, functions: Sequence[Function], vocabulary: Vocabulary) -> None:
        self.functions = functions
        self.vocabulary = vocabulary
        memo: dict[str, list[int]] = {}
        for token in {token for function in functions for token in function.tokens}:
            memo[token] = vocabulary.encode(token)
        self.words = [torch.tensor([memo[token] for token in function.tokens]) for function in functions]
        self.variables = [torch.tensor(function.variables) for function in functions]
        self.hole = torch.tensor(vocabulary.encode(HOLE))

    def draw(self, rng: random.Random, each: int = 1) -> list[Question]:
        """Up to ``each`` questions per function, with different holes."""
        chosen = ((n, rng.sample(f.uses, min(each, len(f.uses)))) for n, f in enumerate(self.functions))
        return [(number, at) for number, holes in chosen for at in holes]

    def split(
        self, questions: Sequence[Question], tokens: int, rng: random.Random | None = None
    ) -> list[list[Question]]:
        """Batches of similar length, up to ``tokens`` tokens including padding; in random order if ``rng`` is given."""
        order = list(questions)
        if rng is not None:
            rng.shuffle(order)  # so that questions of one length meet different ones in every epoch
        order.sort(key=lambda question: len(self.words[question[0]]))
        batches: list[list[Question]] = [[]]
        for question in order:
            if batches[-1] and len(self.words[question[0]]) * (len(batches[-1]) + 1) > tokens:
                batches.append([])
            batches[-1].append(question)
        if rng is not None:
            rng.shuffle(batches)
        return batches

    def batch(self, questions: Sequence[Question]) -> Batch:
        """The tensors of some questions, with every hole hidden."""
        rows = torch.arange(len(questions))
        hole = torch.tensor([at for _, at in questions])
        words = pad_sequence([self.words[number] for number, _ in questions], batch_first=True)
        variables = pad_sequence(
            [self.variables[number] for number, _ in questions], batch_first=True, padding_value=-1
        )
        target = variables[rows, hole]
        words[rows, hole], variables[rows, hole] = self.hole, -1
        functions = tuple(self.functions[number] for number, _ in questions)
        return Batch(words, words[..., 0] == 0, variables, hole, target, functions)
