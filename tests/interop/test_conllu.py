"""Treebanks in CoNLL-U."""

from __future__ import annotations

import gzip
import io
import sys
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

import relgraph as rg
from relgraph.interop import conllu
from relgraph.interop.conllu import UPOS, parse, read

TEXT = """\
# sent_id = one
# text = Don't read old books.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t3:aux\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t3:advmod\t_
3\tread\tread\tVERB\tVB\tMood=Imp\t0\troot\t0:root\t_
4\told\told\tADJ\tJJ\t_\t5\tamod\t5:amod\t_
5\tbooks\tbook\tNOUN\tNNS\t_\t3\tobj:really\t3:obj\t_
5.1\tgladly\tgladly\tADV\tRB\t_\t_\t_\t3:advmod\t_
6\t.\t.\t_\t.\t_\t3\tpunct\t3:punct\t_

# sent_id = two
1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t0:root\t_
"""


def lines(*rows, sent_id="x"):
    """A sentence of (head, relation) rows."""
    words = (f"{i}\tw\tw\tX\t_\t_\t{head}\t{relation}\t_\t_" for i, (head, relation) in enumerate(rows, 1))
    return "\n".join([f"# sent_id = {sent_id}", *words, "", ""])


def test_words_and_tree():
    first, second = parse(TEXT, tags=UPOS)
    assert first.words == ("Do", "n't", "read", "old", "books", ".")
    assert first.lemmas == ("do", "not", "read", "old", "book", ".")
    assert first.xpos == ("VB", "RB", "VB", "JJ", "NNS", ".")
    assert first.feats == ("_", "_", "Mood=Imp", "_", "_", "_")
    assert first.upos == ("AUX", "PART", "VERB", "ADJ", "NOUN", "_")
    assert first.relations == ("aux", "advmod", "root", "amod", "obj:really", "punct")
    assert first.multiword == ((0, 2, "Don't"),)
    assert (first.sent_id, first.text) == ("one", "Don't read old books.")
    assert first.graph.parents().tolist() == [2, 2, -1, 4, 2, 2]
    assert first.graph.edge_index.tolist() == [[2, 2, 4, 2, 2], [0, 1, 3, 4, 5]]
    assert [rg.labelers.UD_RELATIONS[t] for t in first.graph.edge_type] == ["aux", "advmod", "amod", "obj", "punct"]
    assert first.graph.node_type.tolist() == [*(UPOS.index(tag) for tag in first.upos[:-1]), -1]
    assert (second.words, second.graph.num_nodes, second.graph.num_edges) == (("Yes",), 1, 0)
    assert (second.sent_id, second.text) == ("two", None)
    assert parse(TEXT)[0].graph.node_type is None
    assert parse(TEXT) == parse(TEXT) != parse(TEXT, tags=UPOS)


def test_subtypes_count_as_themselves_where_they_are_listed():
    listed = ("aux", "advmod", "amod", "obj", "obj:really", "punct")
    types = parse(TEXT, relations=listed)[0].graph.edge_type
    assert [listed[t] for t in types] == ["aux", "advmod", "amod", "obj:really", "punct"]


def test_files_and_texts_read_alike(tmp_path):
    plain, packed = tmp_path / "a.conllu", tmp_path / "a.conllu.gz"
    plain.write_text("\ufeff" + TEXT, encoding="utf-8")  # a mark at the beginning is no word
    packed.write_bytes(gzip.compress(TEXT.encode()))
    with plain.open(encoding="utf-8-sig") as opened:
        assert read(plain) == read(str(packed)) == read(opened) == read(io.StringIO(TEXT)) == parse(TEXT)
        assert parse("\ufeff" + TEXT) == parse(TEXT)
        assert not opened.closed
    assert parse("") == parse("\n\n") == []


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.permutations(range(1, n + 1)), st.randoms())))
def test_heads_come_back(drawn):
    order, rng = drawn
    heads = [0] * len(order)
    for place, token in enumerate(order[1:], 1):
        heads[token - 1] = order[rng.randrange(place)]
    sentence = parse(lines(*((head, "dep") for head in heads)))[0]
    assert (sentence.graph.parents() + 1).tolist() == heads


BROKEN = {
    "of token 1 must be an integer from 0 to 1, got '2'": lines((2, "dep")),
    "of token 1 must be an integer from 0 to 1, got '_'": lines(("_", "dep")),
    "of token 2 must be an integer from 0 to 2, got '1.0'": lines((0, "root"), ("1.0", "dep")),
    "of token 2 must be an integer from 0 to 2, got '-1'": lines((0, "root"), (-1, "dep")),
    "of token 2 must be an integer from 0 to 2, got 'two'": lines((0, "root"), ("two", "dep")),
    "of token 1 must be an integer from 0 to 1, got '_'$": "# sent_id = x\n1\tword\t_\t_\t_\t_\t_\t_\n",
    "token 2 must not be its own head": lines((0, "root"), (2, "dep")),
    r"one token must be the root, with head 0, got \[1, 3\]": lines((0, "root"), (1, "dep"), (0, "root")),
    "one token must be the root, with head 0, got none": lines((2, "dep"), (1, "dep")),
    "heads must form a tree, got a cycle through token [234]": lines((0, "root"), (3, "dep"), (4, "dep"), (2, "dep")),
    "the relation of token 2 must be one of .*, got 'friend:of'": lines((0, "root"), (1, "friend:of")),
    r"words must be numbered 1, 2, ..., got \[1, 3\]": lines((0, "root"), (1, "dep")).replace("2\tw", "3\tw"),
    r"words must be numbered 1, 2, ..., got \[None\]": lines((0, "root")).replace("1\tw", "_\tw"),
    "token 1-3 must span words up to 1": lines((0, "root")).replace("1\tw", "1-3" + "\tw" * 9 + "\n1\tw"),
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_sentences(message, tmp_path):
    path = tmp_path / "bad.conllu"
    path.write_text(TEXT + "\n" + BROKEN[message], encoding="utf-8")
    with pytest.raises(ValueError, match=rf"^.*bad\.conllu: sentence 3 \(x\): .*{message}"):
        read(path)
    with pytest.raises(ValueError, match=rf"^sentence 1 \(x\): .*{message}"):
        parse(BROKEN[message])


@pytest.mark.parametrize("columns", [1, 2, 7, 11])
def test_rows_of_too_few_or_too_many_columns(columns, tmp_path):
    path = tmp_path / "bad.conllu"
    path.write_text(TEXT + "\n" + "\t".join(["1"] * columns) + "\n", encoding="utf-8")
    at = len(TEXT.split("\n")) + 1
    match = rf"bad\.conllu: sentence 3: line {at} must have 8 to 10 columns, separated by tabs, got {columns}$"
    with pytest.raises(ValueError, match=match):
        read(path)


def test_columns_that_a_comment_names():
    head = "# global.columns = ID FORM HEAD DEPREL\n"
    assert parse(head + "1\tgo\t0\troot\n\n1\ton\t0\troot\n")[1].words == ("on",)
    with pytest.raises(ValueError, match="^sentence 2: line 4 must have 4 columns, separated by tabs, got 10$"):
        parse(head + "1\tgo\t0\troot\n\n" + "\t".join(["1"] * 10))


DAMAGED = {
    "cut off": lambda packed: packed[:-20],
    "of other bytes": lambda packed: packed[:40] + bytes(60) + packed[100:],
    "not gzipped": lambda _: TEXT.encode(),
    "gzipped, but no text": lambda _: gzip.compress(b"\xff\xfe"),
    "followed by something": lambda packed: packed + b"more",
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_files(damage, tmp_path):
    path = tmp_path / "bad.conllu.gz"
    path.write_bytes(DAMAGED[damage](gzip.compress(TEXT.encode() * 200)))
    with pytest.raises(ValueError, match=r"bad\.conllu\.gz: sentence \d+( \(one\))?: "):
        read(path)


def test_refuses_bad_input():
    with pytest.raises(ValueError, match=r"sentence 1 \(one\): the tag of token 2 must be one of \['AUX'\], got 'PAR"):
        parse(TEXT, tags=["AUX"])
    with pytest.raises(ValueError, match="^sentence 1: Failed parsing field 'id'"):
        parse("one\tw\tw\tX\t_\t_\t0\troot\t_\t_\n")
    with pytest.raises(ValueError, match=r"^sentence 1: words must be numbered 1, 2, ..., got \[None\]"):
        parse("# global.columns = FORM HEAD\nw\t0\n")
    for path in ("/nonexistent", "a\ud800"):
        with pytest.raises(FileNotFoundError, match="file must be the path of a file, got .*, which does not exist"):
            conllu.read(path)
    with pytest.raises(TypeError, match="file must be a path or a file open for reading text, got BytesIO"):
        read(io.BytesIO(b""))


def test_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "conllu", None)
    monkeypatch.delitem(sys.modules, "relgraph.interop.conllu")
    with pytest.raises(ImportError, match=r"pip install conllu"):
        import_module("relgraph.interop.conllu")


@pytest.mark.parametrize("spans", [("1-2", "2-3", None), (None, "1-2", None), ("2-3", None, None)])
def test_tokens_of_several_words_stand_before_their_own(spans):
    rows = [("0", "root"), ("1", "x"), ("1", "x")]
    text = "".join(
        (f"{span}\tw\t_\t_\t_\t_\t_\t_\t_\t_\n" if span else "") + f"{i}\tw\tw\tX\t_\t_\t{head}\t{relation}\t_\t_\n"
        for i, (span, (head, relation)) in enumerate(zip(spans, rows, strict=True), 1)
    )
    with pytest.raises(ValueError, match=r"sentence 1: token \d-\d must come right before its words, which no other"):
        parse(text, relations=("root", "x"))
