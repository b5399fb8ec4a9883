"""Dependency trees from treebanks in CoNLL-U, read by the package conllu; needs the extra ``relgraph[conllu]``.

- :func:`~relgraph.interop.conllu.read`: all sentences of a file.
- :func:`~relgraph.interop.conllu.parse`: all sentences of a text.
- :class:`~relgraph.interop.conllu.Sentence`: words and tree of one sentence.
- :data:`~relgraph.interop.conllu.UPOS`: the universal parts of speech, names for node types.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO, final

import torch

from relgraph.arguments.brief import brief_fields, cut, shown
from relgraph.arguments.public import lists_public
from relgraph.graphs import Graph
from relgraph.labelers.tree.dependency import UD_RELATIONS

try:
    import conllu
    from conllu.exceptions import ParseException
except ImportError:
    raise ImportError("relgraph.interop.conllu needs conllu: pip install conllu") from None

__all__ = ["UPOS", "Sentence", "parse", "read"]
__dir__ = lists_public(globals())

UPOS = (
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ"),
    *("SYM", "VERB", "X"),
)
"""The 17 universal parts of speech of Universal Dependencies, version 2, in alphabetical order."""

# Columns that are not parsed: heads for our own error message, the others because they are not used.
_AS_WRITTEN = {name: lambda line, i: line[i] for name in ("xpos", "feats", "head", "deps", "misc")}

_COLUMNS = (8, 10)  # the last two of the ten are not used and may be missing

_UTF8 = "utf-8-sig"  # with or without a byte order mark


@final
@dataclass(frozen=True)
class Sentence:
    r"""A sentence of a treebank: its words and their dependency tree, one node per word.

    An edge of the tree leads from head to dependent: the head is the key j, the dependent the query i.

    Source: Universal Dependencies, the format CoNLL-U (https://universaldependencies.org/format.html).

    Args:
        words: the form of every word.
        lemmas: their lemmas, ``"_"`` if there is none.
        upos: their universal parts of speech.
        xpos: their tags in the treebank's own scheme.
        feats: their morphological features, as written: ``"Number=Sing|Person=3"``.
        relations: the relation of every word to its head, with subtype.
        graph: the tree, a :class:`~relgraph.Graph`; the type of an edge is the number of the relation.
        multiword: ``(start, stop, form)`` of each token that covers the words ``start:stop``.
        sent_id: the comment ``# sent_id``, or None.
        text: the comment ``# text``, or None.

    Example:
        >>> (sentence,) = rg.interop.conllu.parse("1\tGo\tgo\tVERB\t_\t_\t0\troot\n2\ton\ton\tADP\t_\t_\t1\tadvmod\n")
        >>> sentence.words, sentence.upos, sentence.graph.edge_index.tolist()
        (('Go', 'on'), ('VERB', 'ADP'), [[0], [1]])
    """

    words: tuple[str, ...]
    lemmas: tuple[str, ...]
    upos: tuple[str, ...]
    xpos: tuple[str, ...]
    feats: tuple[str, ...]
    relations: tuple[str, ...]
    graph: Graph
    multiword: tuple[tuple[int, int, str], ...] = ()
    sent_id: str | None = None
    text: str | None = None

    def __repr__(self) -> str:
        return brief_fields(self, "words", "relations", "graph", "multiword", "sent_id")


def read(
    file: str | os.PathLike[str] | TextIO,
    *,
    relations: Sequence[str] = UD_RELATIONS,
    tags: Sequence[str] | None = None,
) -> list[Sentence]:
    r"""Read all sentences of a CoNLL-U file; any error in the file raises.

    Words are nodes; an edge leads from head (key) to dependent (query). Tokens of several words (``1-2``) are kept as
    ``multiword``; empty nodes (``8.1``) and enhanced dependencies are left out. A row has ten columns, of which the
    last two are not used and may be missing, or the columns that a comment ``# global.columns`` names.

    Source: Universal Dependencies, the format CoNLL-U (https://universaldependencies.org/format.html).

    Args:
        file: a path, of a gzipped file if it ends in ``.gz``; or a file open for reading text.
        relations: the names of the edge types. If a relation with a subtype, such as ``nmod:poss``, is not listed, it
            counts as its universal part, ``nmod``. The root has no edge, so its relation is not checked.
        tags: the names of the node types, such as :data:`~relgraph.interop.conllu.UPOS`; None for nodes without types.
            A word without a tag, ``"_"``, has the type -1.

    Returns:
        A list of :class:`~relgraph.interop.conllu.Sentence`.

    Raises:
        TypeError: a file open for reading bytes.
        ValueError: a line that is not CoNLL-U, a row of too few or too many columns, words that are not numbered 1, 2,
            ..., heads that do not form a tree with one root, a relation or tag that is not listed, or a damaged gzipped
            file; the message names the file, the sentence and the token or line.
        FileNotFoundError: there is no file at the path.

    Example:
        >>> import io
        >>> file = io.StringIO("1\tsleep\tsleep\tVERB\t_\t_\t0\troot\n\n1\twake\twake\tVERB\t_\t_\t0\troot\n")
        >>> [sentence.words for sentence in rg.interop.conllu.read(file)]
        [('sleep',), ('wake',)]
    """
    relations = _names("relations", relations)
    tags = None if tags is None else _names("tags", tags)
    with _opened(file) as (lines, name):
        return list(_sentences(lines, name, relations, tags))


def parse(text: str, *, relations: Sequence[str] = UD_RELATIONS, tags: Sequence[str] | None = None) -> list[Sentence]:
    r"""Read all sentences of a string in CoNLL-U, as :func:`~relgraph.interop.conllu.read` does for a file.

    An edge leads from head (key) to dependent (query).

    Source: Universal Dependencies, the format CoNLL-U (https://universaldependencies.org/format.html).

    Args:
        text: the lines, columns separated by tabs.
        relations: the names of the edge types, as in :func:`~relgraph.interop.conllu.read`.
        tags: the names of the node types, or None.

    Returns:
        A list of :class:`~relgraph.interop.conllu.Sentence`.

    Raises:
        ValueError: as in :func:`~relgraph.interop.conllu.read`.

    Example:
        >>> text = "1\tcats\tcat\tNOUN\t_\t_\t2\tnsubj\n2\tsleep\tsleep\tVERB\t_\t_\t0\troot\n"
        >>> sentence = rg.interop.conllu.parse(text)[0]
        >>> sentence.words, sentence.relations
        (('cats', 'sleep'), ('nsubj', 'root'))
        >>> labeler = rg.labelers.dependency_relations()
        >>> labeler.names[labeler(sentence.graph).to_dense()[0][0, 0, 1]]  # query "cats", key "sleep"
        'nsubj'
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a string, got {type(text).__name__}")
    return read(io.StringIO(text.removeprefix("\ufeff")), relations=relations, tags=tags)


@contextmanager
def _opened(file: Any) -> Iterator[tuple[TextIO, str]]:
    """The lines of a file, and its name with a colon if it has one."""
    if isinstance(file, (str, os.PathLike)):
        path = os.fspath(file)
        if not os.path.exists(path):
            raise FileNotFoundError(f"file must be the path of a file, got {shown(path)}, which does not exist")
        with gzip.open(path, "rt", encoding=_UTF8) if path.endswith(".gz") else open(path, encoding=_UTF8) as lines:
            yield lines, f"{path}: "  # pyright: ignore[reportReturnType]
    elif _is_text(file):
        name = getattr(file, "name", None)
        yield file, f"{name}: " if isinstance(name, str) else ""
    else:
        raise TypeError(f"file must be a path or a file open for reading text, got {type(file).__name__}")


class _Lines:
    """The lines of a file; raises ValueError at a row with too few or too many columns."""

    def __init__(self, lines: TextIO) -> None:
        self.lines = lines

    def read(self) -> str:
        """All lines; the package conllu needs a ``read`` method."""
        return "".join(self)

    def __iter__(self) -> Iterator[str]:
        fewest, most = _COLUMNS
        for number, line in enumerate(self.lines, 1):
            row = line.strip()
            if row.startswith("# global.columns ="):
                fewest = most = len(row.partition("=")[2].split())
            elif row and not row.startswith("#"):
                count = len(re.split(r"\t| {2,}", row))  # as the package conllu splits them
                if not fewest <= count <= most:
                    wanted = f"{most}" if fewest == most else f"{fewest} to {most}"
                    raise ValueError(f"line {number} must have {wanted} columns, separated by tabs, got {count}")
            yield line


def _is_text(file: Any) -> bool:
    """Whether it is a file open for reading text."""
    if isinstance(file, type) or not callable(getattr(file, "read", None)):
        return False
    try:
        return isinstance(file.read(0), str)
    except (OSError, ValueError) as error:  # closed, or open for writing
        raise ValueError(f"file must be open for reading text, got one that is not: {error}") from None


def _names(name: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
        raise TypeError(f"{name} must be a sequence of strings, got {shown(names)}")
    if len(set(names)) != len(names):
        raise ValueError(f"{name} must be different, got {cut(str(list(names)))}")
    return tuple(names)


def _sentences(
    lines: TextIO, name: str, relations: tuple[str, ...], tags: tuple[str, ...] | None
) -> Iterator[Sentence]:
    types = {relation: number for number, relation in enumerate(relations)}
    tag_types = None if tags is None else {tag: number for number, tag in enumerate((*tags, "_"))} | {"_": -1}
    counted: Any = _Lines(lines)
    number, where = 1, f"{name}sentence 1"
    try:
        for number, tokens in enumerate(conllu.parse_incr(counted, field_parsers=_AS_WRITTEN), 1):
            sent_id = tokens.metadata.get("sent_id")
            where = f"{name}sentence {number}" + (f" ({sent_id})" if sent_id else "")
            yield _sentence(tokens, types, tag_types)
            where = f"{name}sentence {number + 1}"
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{where}: the gzipped file must be whole, got damage: {error}") from None
    except (ParseException, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def _sentence(tokens: conllu.TokenList, types: dict[str, int], tags: dict[str, int] | None) -> Sentence:
    words = [token for token in tokens if not isinstance(token.get("id"), tuple)]
    numbers = [word.get("id") for word in words]
    if numbers != list(range(1, len(words) + 1)):
        raise ValueError(f"words must be numbered 1, 2, ..., got {cut(str(numbers))}")
    forms, lemmas, upos, xpos, feats, relations = (
        tuple(word.get(column, "_") for word in words)
        for column in ("form", "lemma", "upos", "xpos", "feats", "deprel")
    )
    heads = _heads([word.get("head", "_") for word in words])
    edge_type = [
        0 if head == 0 else _number("relation", (relation, relation.split(":")[0]), types, token)
        for token, (head, relation) in enumerate(zip(heads, relations, strict=True), 1)
    ]
    node_type = None
    if tags is not None:
        node_type = torch.tensor([_number("tag", (tag,), tags, token) for token, tag in enumerate(upos, 1)])
    tree = Graph.from_parents(torch.tensor(heads) - 1, edge_type=torch.tensor(edge_type), node_type=node_type)
    names = {"edge_types": [*types], "node_types": None if tags is None else [*tags][: max(tags.values()) + 1]}
    graph = Graph(tree.edge_index, tree.num_nodes, edge_type=tree.edge_type, node_type=node_type, **names)
    multiword = tuple(_multiword(tokens, len(words)))
    metadata = tokens.metadata
    return Sentence(
        forms, lemmas, upos, xpos, feats, relations, graph, multiword, metadata.get("sent_id"), metadata.get("text")
    )


def _heads(written: list[str]) -> list[int]:
    """The head of every word, 0 for the root; raise ValueError unless they form a tree."""
    count = len(written)
    for token, head in enumerate(written, 1):
        if not (head.isascii() and head.isdecimal() and int(head) <= count):
            raise ValueError(f"the head of token {token} must be an integer from 0 to {count}, got {head!r}")
        if int(head) == token:
            raise ValueError(f"token {token} must not be its own head")
    heads = [int(head) for head in written]
    roots = [token for token, head in enumerate(heads, 1) if head == 0]
    if len(roots) != 1:
        raise ValueError(f"one token must be the root, with head 0, got {roots or 'none'}")
    above = heads
    for _ in range(count.bit_length()):  # each pass doubles the number of steps up
        above = [above[head - 1] if head else 0 for head in above]
    if any(above):
        raise ValueError(f"heads must form a tree, got a cycle through token {next(filter(None, above))}")
    return heads


def _number(what: str, names: tuple[str, ...], numbers: dict[str, int], token: int) -> int:
    """The number of the first of these names that has one."""
    for name in names:
        if name in numbers:
            return numbers[name]
    raise ValueError(f"the {what} of token {token} must be one of {[n for n in numbers if n != '_']}, got {names[0]!r}")


def _multiword(tokens: conllu.TokenList, count: int) -> Iterator[tuple[int, int, str]]:
    seen = spanned = 0  # the last word so far, and the last that a token of several words covers
    for token in tokens:
        match token.get("id"):
            case (first, "-", last):
                if last > count:
                    raise ValueError(f"token {first}-{last} must span words up to {count}")
                if first != seen + 1 or first <= spanned or last < first:
                    raise ValueError(
                        f"token {first}-{last} must come right before its words, which no other token spans; it comes "
                        f"after word {seen}, and words up to {spanned} are spanned"
                    )
                spanned = last
                yield first - 1, last, token.get("form", "_")
            case int(word):
                seen = word
