"""The translator's data: corpora as strangers bring them, subwords, batches, and what is held out of training."""

import gzip
import itertools
import json
import random

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")
pytest.importorskip("tqdm")

from examples.translation import cli, corpus
from examples.translation.batches import Pairs, Ragged
from examples.translation.vocabulary import END, PAD, SPECIAL, START, Vocabulary


def _file(folder, name, content):
    path = folder / name
    raw = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.mark.parametrize("name", ["lines.txt", "lines.txt.gz"])
def test_lines_are_what_line_feeds_part(tmp_path, name):
    for content, lines in (
        ("", []),
        ("one\r\n\n two \n", ["one", "", " two "]),
        ("\ufeffone\n\ufefftwo", ["one", "\ufefftwo"]),
        ("a\u2028b\u0085c\x0bd\x0ce\x1cf\rg\n👩‍👩‍👧\n", ["a\u2028b\u0085c\x0bd\x0ce\x1cf\rg", "👩‍👩‍👧"]),
    ):
        assert list(corpus.read_lines(_file(tmp_path, name, content))) == lines
    with pytest.raises(ValueError, match=rf"{name}, line 3: must be UTF-8, .* at byte 2"):
        list(corpus.read_lines(_file(tmp_path, name, b"fine\nfine too\nna\xefve\n")))


def test_a_corpus_is_tab_separated_or_in_two_files(tmp_path):
    content = "\ufeffHi.\tHallo!\tCC-BY 2.0\tmore\r\n  two  words \t zwei\tx\n\tleer\nempty\t\nlast\u2028one\tletzte"
    pairs = [("Hi.", "Hallo!"), ("two  words", "zwei"), ("", "leer"), ("empty", ""), ("last\u2028one", "letzte")]
    assert corpus.read_corpus([_file(tmp_path, "pairs.tsv.gz", content)]) == pairs
    assert corpus.with_both_sides(pairs) == [pairs[0], pairs[1], pairs[-1]]
    files = [_file(tmp_path, "a.en", "\ufeffone\n\ntwo\twords\n four \n"), _file(tmp_path, "a.de", "1\r\n2\r\n3\r\n4")]
    assert corpus.read_corpus(files) == [("one", "1"), ("", "2"), ("two\twords", "3"), ("four", "4")]
    with pytest.raises(ValueError, match=r"few must have as many lines as \S*a\.de, but ends before line 2$"):
        corpus.read_corpus([_file(tmp_path, "few", "1\n"), files[1]])
    with pytest.raises(ValueError, match=r"bad\.tsv, line 2: must be source, tab, target; got 'no tab'$"):
        corpus.read_corpus([_file(tmp_path, "bad.tsv", "a\tb\nno tab\nc\td")])


def test_case_and_punctuation_make_no_other_sentence():
    for one, other in (
        ("Don’t go!", "don't go"),
        ("STRASSE", "straße"),
        ("well - yes", "Well, yes."),
        ("  a  b ", "a b"),
    ):
        assert corpus.sentence_key(one) == corpus.sentence_key(other)
    for one, other in (("a b", "ab"), ("你好", "你们好"), ("!", "?"), ("3.5", "35"), ("é", "e")):
        assert corpus.sentence_key(one) != corpus.sentence_key(other)


def _keys(pairs):
    return {corpus.sentence_key(source) for source, _ in pairs}


def _sentences(count, longest, seed):
    """Pairs of random words; a third of the sources comes again, with other case or punctuation."""
    draws = random.Random(seed)
    pairs = []
    while len(pairs) < count:
        chosen = draws.choices(["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op"], k=draws.randint(1, longest))
        source, target = " ".join(chosen), " ".join(word[::-1] for word in chosen)
        pairs.append((source, target))
        if draws.random() < 0.3:
            pairs.append((source.capitalize() + draws.choice(".!?"), target + "!"))
    draws.shuffle(pairs)
    return pairs[:count]


@given(st.integers(0, 60), st.lists(st.integers(0, 12), max_size=3), st.integers(0, 5))
def test_no_sentence_stands_in_two_parts(count, sizes, seed):
    pairs = _sentences(count, 3, seed)
    if sum(sizes) > len(_keys(pairs)):
        with pytest.raises(ValueError, match=rf"{sum(sizes)} sentences cannot be held out of {len(_keys(pairs))} diff"):
            corpus.hold_out(pairs, sizes, seed)
        return
    train, held = corpus.hold_out(pairs, sizes, seed)
    assert corpus.hold_out(pairs, sizes, seed) == (train, held)
    assert [len(part) for part in held] == [len(_keys(part)) for part in held] == sizes
    for one, other in itertools.combinations([train, *held], 2):
        assert not _keys(one) & _keys(other)
    # the rest of the pairs is there, whole
    taken = set().union(*map(_keys, held))
    assert sorted(train) == sorted(pair for pair in pairs if corpus.sentence_key(pair[0]) not in taken)


TEXT = ["the cat sat on the mat", "the dog and the cat", "der Hund und die Katze", "größer, weiter, höher!", "你好"] * 4


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train(TEXT, 300)


def test_ids_and_text_are_each_others_inverse(vocabulary):
    lines = [*TEXT, "", "</s>", "<pad>", "[PAD]", "\x00\x01", "gro\u0308ßer", "nie: żółć", "👩‍👩‍👧"]
    rows = vocabulary.encode(lines)
    shown = [line.replace("o\u0308", "ö") for line in lines]
    assert vocabulary.decode(rows) == shown
    assert all(SPECIAL <= i < len(vocabulary) <= 300 for row in rows for i in row)
    # start, end and padding have no text wherever they stand
    assert vocabulary.decode([[START, *row, PAD, END] for row in rows]) == shown
    assert all(len(text.splitlines()) <= 1 for text in vocabulary.decode([[i] for i in range(len(vocabulary))]))


def _pairs(lengths):
    """Pairs of so many source tokens and so many target tokens that are asked for; every pair's ids are its own."""
    source = [[SPECIAL + 2 * number] * (length - 1) + [END] for number, (length, _) in enumerate(lengths)]
    target = [[START] + [SPECIAL + 2 * number + 1] * (length - 1) + [END] for number, (_, length) in enumerate(lengths)]
    return Pairs(Ragged.of(source), Ragged.of(target))


_lengths = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), max_size=40)


@given(_lengths, st.integers(1, 60), st.integers(1, 13), st.none() | st.integers(0, 9))
@example([(9, 1), *[(1, 2)] * 6], 20, 12, None)  # the first is wider than those that follow
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


def test_pairs_are_encoded_with_start_and_end_saved_and_loaded(tmp_path, vocabulary, monkeypatch):
    monkeypatch.setattr("examples.translation.batches.ENCODED_AT_ONCE", 2)
    pairs = [("the cat", "die Katze"), ("a dog", "Hund"), ("mat", "")]
    saved = Pairs.encode(pairs, vocabulary)
    saved.save(tmp_path / "pairs.pt", vocabulary)
    for some in (saved, Pairs.load(tmp_path / "pairs.pt", vocabulary)):
        for number, (source, target) in enumerate(pairs):
            batch = some.batch(torch.tensor([number]))
            assert batch.source.tolist() == [[*vocabulary.encode([source])[0], END]]
            assert batch.target.tolist() == [[START, *vocabulary.encode([target])[0], END]]
    (tmp_path / "pairs.pt").write_text("a\tb\n" * 100)
    with pytest.raises(ValueError, match=r"pairs\.pt must be a file that this program saved"):
        Pairs.load(tmp_path / "pairs.pt", vocabulary)


def _prepare(folder, files, *options):
    sizes = ["--held-out", "15", "--vocabulary-size", "300", "--seed", "3"]
    return cli.main(["prepare", str(folder), "--train", *map(str, files), *sizes, *map(str, options)])


def _tab_separated(pairs):
    return "".join(f"{source}\t{target}\tby someone\n" for source, target in pairs)


UNSEEN = ("--max-words", 5, "--unseen", "6-7", "8-12")
FILES = {"train.pt", "valid.pt", "valid.tsv", "test.tsv", "test-6-7.tsv", "test-8-12.tsv"}
FILES |= {"vocabulary.json", "sizes.json"}


@pytest.fixture(scope="module")
def sentences():
    return _sentences(500, 12, 7)


def _text(folder):
    """The training pairs as text, and the parts to measure on."""
    vocabulary = Vocabulary((folder / "vocabulary.json").read_text(encoding="utf-8"))
    pairs = Pairs.load(folder / "train.pt", vocabulary)
    batch = pairs.batch(torch.arange(len(pairs)))
    train = list(zip(vocabulary.decode(batch.source.tolist()), vocabulary.decode(batch.target.tolist()), strict=True))
    return {"train": train} | {path.stem: corpus.read_corpus([path]) for path in folder.glob("*.tsv")}


def test_prepared_parts_are_disjoint_and_of_the_lengths_asked_for(tmp_path, sentences):
    path = _file(tmp_path, "all.tsv", _tab_separated(sentences))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".train.pt.7.partial").write_text("left by a killed command")
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
    sizes = json.loads((tmp_path / "data" / "sizes.json").read_text())
    assert sizes == {name: len(part) for name, part in parts.items()} | {"vocabulary": sizes["vocabulary"]}
    assert [sizes[name] for name in ("valid", "test", "test-6-7", "test-8-12")] == [15] * 4
    # tests of an earlier prepare go, others stay
    (tmp_path / "data" / "test-own.tsv").write_text("a\tb\n")
    assert _prepare(tmp_path / "data", [path], "--max-words", 5, "--unseen", "6-7") == 0
    assert {path.name for path in (tmp_path / "data").iterdir()} == FILES - {"test-8-12.tsv"} | {"test-own.tsv"}


def test_a_dash_makes_no_unseen_sentence(tmp_path):
    """With a dash between spaces a sentence has a word more, but the same words: it may have been trained on."""
    pairs = [(f"a b c d{number}", "x") for number in range(40)]
    pairs += [(f"a b - c d{number}", "x") for number in range(40)]
    pairs += [(f"a b c d e f{number}", "x") for number in range(9)]
    path = _file(tmp_path, "all.tsv", _tab_separated(pairs))
    assert _prepare(tmp_path / "data", [path], "--max-words", 4, "--unseen", "5-5", "6-7") == 2
    assert not (tmp_path / "data").exists()
    assert _prepare(tmp_path / "data", [path], "--max-words", 4, "--unseen", "5-7") == 0
    parts = _text(tmp_path / "data")
    assert len(parts["train"]) == 10
    assert _keys(parts["test-5-7"]) == {f"a b c d e f{number}" for number in range(9)}
