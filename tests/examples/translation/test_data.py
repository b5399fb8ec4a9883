"""Tests the translator's data: foreign corpora, subwords, batches, and the held-out parts."""

import gzip
import itertools
import random

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")

from examples.translation import cli, corpus
from examples.translation.batches import Pairs, Ragged
from examples.translation.vocabulary import END, PAD, SPECIAL, START, Vocabulary


def _file(folder, name, content):
    path = folder / name
    raw = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def test_a_corpus_is_tab_separated_or_in_two_files(tmp_path):
    last = "a\u2028b\u0085c\x0bd\x0ce\x1cf\rg"
    content = f"\ufeffHi.\tHallo!\tCC-BY 2.0\tmore\r\n  two  words \t zwei\tx\n\tleer\nempty\t\n{last}\tletzte"
    pairs = [("Hi.", "Hallo!"), ("two  words", "zwei"), (last, "letzte")]
    assert corpus.read_corpus([_file(tmp_path, "pairs.tsv.gz", content)]) == pairs
    files = [_file(tmp_path, "a.en", "\ufeffone\n\ntwo\twords\n four \n"), _file(tmp_path, "a.de", "1\r\n2\r\n3\r\n4")]
    assert corpus.read_corpus(files) == [("one", "1"), ("two\twords", "3"), ("four", "4")]
    with pytest.raises(ValueError, match=r"a\.de must have the 1 lines of \S*few, got 4$"):
        corpus.read_corpus([_file(tmp_path, "few", "1\n"), files[1]])
    with pytest.raises(ValueError, match=r"bad\.tsv, line 2: must be source, tab, target; got 'no tab'$"):
        corpus.read_corpus([_file(tmp_path, "bad.tsv", "a\tb\nno tab\nc\td")])
    with pytest.raises(ValueError, match=r"raw\.tsv\.gz must be UTF-8"):
        corpus.read_corpus([_file(tmp_path, "raw.tsv.gz", b"a\tb\nc\td\nna\xefve\te\n")])


def _keys(pairs):
    return {corpus.sentence_key(source) for source, _ in pairs}


def _sentences(count, longest, seed):
    """Pairs of random words; a third of the sources occurs again, with other case or punctuation or one more word."""
    draws = random.Random(seed)
    pairs = []
    while len(pairs) < count:
        chosen = draws.choices(["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op"], k=draws.randint(1, longest))
        source, target = " ".join(chosen), " ".join(word[::-1] for word in chosen)
        pairs.append((source, target))
        if draws.random() < 0.3:
            pairs.append((source.capitalize() + draws.choice([".", "!", "?", " -"]), target + "!"))
    draws.shuffle(pairs)
    return pairs[:count]


TEXT = ["the cat sat on the mat", "the dog and the cat", "der Hund und die Katze", "größer, weiter, höher!", "你好"] * 4


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train(TEXT, 300)


def test_ids_and_text_are_each_others_inverse(vocabulary):
    lines = [*TEXT, "", "</s>", "<pad>", "[PAD]", "\x00\x01", "gro\u0308ßer", "nie: żółć", "👩‍👩‍👧"]
    rows = [*vocabulary.encode(lines)]
    shown = [line.replace("o\u0308", "ö") for line in lines]
    assert vocabulary.decode(rows) == shown
    assert all(SPECIAL <= i < len(vocabulary) <= 300 for row in rows for i in row)
    # start, end and padding have no text at any position
    assert vocabulary.decode([[START, *row, PAD, END] for row in rows]) == shown
    assert all(len(text.splitlines()) <= 1 for text in vocabulary.decode([[i] for i in range(len(vocabulary))]))


def _pairs(lengths):
    """Pairs with these numbers of source tokens and of target tokens to predict; every pair has its own ids."""
    source = [[SPECIAL + 2 * number] * (length - 1) + [END] for number, (length, _) in enumerate(lengths)]
    target = [[START] + [SPECIAL + 2 * number + 1] * (length - 1) + [END] for number, (_, length) in enumerate(lengths)]
    return Pairs(Ragged.of(source), Ragged.of(target))


_lengths = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), max_size=40)


@given(_lengths, st.integers(1, 60), st.integers(1, 13), st.none() | st.integers(0, 9))
@example([(9, 1), *[(1, 2)] * 6], 20, 12, None)  # the first is wider than the others
def test_every_pair_comes_once_and_an_epoch_follows_from_its_seed(lengths, tokens, longest, seed):
    pairs = _pairs(lengths)
    parts = pairs.batches(tokens, longest, seed)
    assert [part.tolist() for part in parts] == [part.tolist() for part in pairs.batches(tokens, longest, seed)]
    fit = [number for number, pair in enumerate(lengths) if max(pair) <= longest]
    assert sorted(i for part in parts for i in part.tolist()) == fit
    for part in parts:
        batch = pairs.batch(part)
        width = max(batch.source.shape[1], batch.target.shape[1] - 1)
        assert len(part) == 1 or 0 < len(part) * width <= tokens
        assert batch.tokens == sum(lengths[i][1] for i in part.tolist())


def _prepare(folder, files, *options):
    sizes = ["--held-out", "15", "--vocabulary-size", "300"]
    return cli.main(["prepare", str(folder), "--train", *map(str, files), *sizes, *map(str, options)])


UNSEEN = ("--max-words", 5, "--unseen", "6-7", "8-12")
FILES = {"train.pt", "valid.pt", "valid.tsv", "test.tsv", "test-6-7.tsv", "test-8-12.tsv", "vocabulary.json"}


def _text(folder):
    """The training pairs as text, and the test parts."""
    vocabulary, pairs = Vocabulary.load(folder), Pairs.load(folder / "train.pt")
    batch = pairs.batch(torch.arange(len(pairs)))
    train = list(zip(vocabulary.decode(batch.source.tolist()), vocabulary.decode(batch.target.tolist()), strict=True))
    return {"train": train} | {path.stem: corpus.read_corpus([path]) for path in folder.glob("*.tsv")}


def test_prepared_parts_are_disjoint_and_of_the_lengths_asked_for(tmp_path, capsys):
    sentences = _sentences(500, 12, 7)
    path = _file(tmp_path, "all.tsv", "".join(f"{source}\t{target}\tby someone\n" for source, target in sentences))
    assert _prepare(tmp_path / "data", [path], *UNSEEN) == 0
    assert {path.name for path in (tmp_path / "data").iterdir()} == FILES
    parts = _text(tmp_path / "data")
    for one, other in itertools.combinations(parts.values(), 2):
        assert not _keys(one) & _keys(other)
    assert all(set(part) <= set(sentences) for part in parts.values())
    held = _keys(parts["valid"]) | _keys(parts["test"])
    short = [pair for pair in sentences if len(pair[0].split()) <= 5]
    assert sorted(parts["train"]) == sorted(pair for pair in short if corpus.sentence_key(pair[0]) not in held)
    lengths = {name: {len(source.split()) for source, _ in part} for name, part in parts.items()}
    assert lengths["valid"] | lengths["test"] <= lengths["train"] == {1, 2, 3, 4, 5}
    assert lengths["test-6-7"] == {6, 7}
    assert lengths["test-8-12"] <= set(range(8, 13))
    assert [len(part) for name, part in parts.items() if name != "train"] == [15] * 4
    assert _prepare(tmp_path / "data", [path]) == 2
    assert "data must be a new folder, got one with files" in capsys.readouterr().err
