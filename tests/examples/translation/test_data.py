"""The translator's data: corpora as strangers bring them, subwords, batches, and what is held out of training."""

import gzip
import itertools
import json
import random
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")
pytest.importorskip("tqdm")

from examples.translation import cli, corpus
from examples.translation.batches import Batch, Pairs, Ragged
from examples.translation.vocabulary import BYTES, END, PAD, SPECIAL, START, Vocabulary

ROOT = Path(__file__).resolve().parents[3]


def _file(folder, name, content):
    path = folder / name
    raw = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.mark.parametrize("name", ["lines.txt", "lines.txt.gz"])
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("", []),
        ("one", ["one"]),
        ("one\n", ["one"]),
        ("one\n\n two \n", ["one", "", " two "]),
        ("one\r\ntwo\r\n", ["one", "two"]),
        ("\ufeffone\n\ufefftwo\n", ["one", "\ufefftwo"]),
        ("a\u2028b\u0085c\x0bd\x0ce\x1cf\rg\nnext", ["a\u2028b\u0085c\x0bd\x0ce\x1cf\rg", "next"]),
        ("你好\n👩‍👩‍👧\n\x00\x1b\ne\u0301\n", ["你好", "👩‍👩‍👧", "\x00\x1b", "e\u0301"]),
    ],
)
def test_lines_are_what_line_feeds_part(tmp_path, name, content, lines):
    assert list(corpus.read_lines(_file(tmp_path, name, content))) == lines


@pytest.mark.parametrize("name", ["lines.txt", "lines.txt.gz"])
def test_a_line_that_is_no_utf8_is_named(tmp_path, name):
    path = _file(tmp_path, name, b"fine\nfine too\nna\xefve\n")
    with pytest.raises(ValueError, match=rf"{name}, line 3: must be UTF-8, .* at byte 2"):
        list(corpus.read_lines(path))
    with pytest.raises(ValueError, match=r"standard input, line 1: must be UTF-8, invalid start byte at byte 0"):
        list(corpus.decode_lines(["a\n".encode("utf-16")], "standard input"))


def test_a_broken_packed_file_is_named(tmp_path):
    packed = gzip.compress("".join(f"{number * 7919 % 1000}\n" for number in range(2000)).encode())
    cut = tmp_path / "cut.gz"
    cut.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match=r"cut\.gz must be a whole gzip file: .*ended before"):
        list(corpus.read_lines(cut))
    damaged = tmp_path / "damaged.gz"
    damaged.write_bytes(packed[:50] + bytes(200) + packed[250:])
    with pytest.raises(ValueError, match=r"damaged\.gz must be a whole gzip file"):
        list(corpus.read_lines(damaged))
    plain = tmp_path / "plain.gz"
    plain.write_text("one\n")
    with pytest.raises(ValueError, match=r"plain\.gz must be a whole gzip file: Not a gzipped file"):
        list(corpus.read_lines(plain))


def test_a_tab_separated_corpus(tmp_path):
    content = (
        "\ufeffHi.\tHallo!\tCC-BY 2.0\tmore\r\n  two  words \t zwei\tx\n\tleer\nempty\t\n \t \nlast\u2028one\tletzte"
    )
    blank = [("", "leer"), ("empty", ""), ("", "")]
    pairs = [("Hi.", "Hallo!"), ("two  words", "zwei"), *blank, ("last\u2028one", "letzte")]
    assert corpus.with_both_sides(pairs) == [pairs[0], pairs[1], pairs[-1]]
    for name in ("pairs.tsv", "pairs.tsv.gz"):
        assert corpus.read_corpus([_file(tmp_path, name, content)]) == pairs


def test_a_corpus_in_two_files(tmp_path):
    source = _file(tmp_path, "a.en", "\ufeffone\n\ntwo\twords\n four \n")
    target = _file(tmp_path, "a.de.gz", "eins\r\nleer\r\nzwei\r\nvier")
    assert corpus.read_corpus([source, target]) == [
        ("one", "eins"),
        ("", "leer"),
        ("two\twords", "zwei"),
        ("four", "vier"),
    ]


@pytest.mark.parametrize(("content", "line"), [("a\tb\nno tab\nc\td", "2"), ("a\tb\n\n", "2"), ("x" * 99, "1")])
def test_a_line_without_a_tab_is_named(tmp_path, content, line):
    path = _file(tmp_path, "pairs.tsv", content)
    with pytest.raises(ValueError, match=rf"pairs\.tsv, line {line}: must be source, tab, target; got '.{{0,60}}'$"):
        corpus.read_corpus([path])


def test_files_of_unequal_length_are_refused(tmp_path):
    few, many = _file(tmp_path, "few", "1\n2\n"), _file(tmp_path, "many", "1\n2\n3\n4\n")
    none = _file(tmp_path, "none", "")
    with pytest.raises(ValueError, match=r"few must have as many lines as \S*many, but ends before line 3$"):
        corpus.read_corpus([few, many])
    with pytest.raises(ValueError, match=r"few must have as many lines as \S*many, but ends before line 3$"):
        corpus.read_corpus([many, few])
    for files in ([none, few], [few, none]):
        with pytest.raises(ValueError, match=r"none must have as many lines as \S*few, but ends before line 1$"):
            corpus.read_corpus(files)


@pytest.mark.parametrize("count", [0, 3])
def test_a_corpus_is_one_file_or_two(tmp_path, count):
    with pytest.raises(ValueError, match=rf"one tab-separated file or two files, got {count} files"):
        corpus.read_corpus([_file(tmp_path, "a", "a\tb")] * count)


_cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\ufeff"), min_size=1)
_cells = _cells.map(str.strip).filter(bool)


@given(st.lists(st.tuples(_cells, _cells)))
def test_written_pairs_are_read_again(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("written") / "pairs.tsv"
    corpus.write_pairs(path, pairs)
    spaced = [(source.replace("\t", " "), target.replace("\t", " ")) for source, target in pairs]
    assert corpus.read_corpus([path]) == spaced


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Don’t go!", "don't go"),
        ("STRASSE", "straße"),
        ("well - yes", "Well, yes."),
        ("  a  b ", "a b"),
        ("cafe\u0301s", "CAFÉS"),
    ],
)
def test_case_and_punctuation_make_no_other_sentence(one, other):
    assert corpus.sentence_key(one) == corpus.sentence_key(other)


@pytest.mark.parametrize(("one", "other"), [("a b", "ab"), ("你好", "你们好"), ("!", "?"), ("3.5", "35"), ("é", "e")])
def test_other_words_make_another_sentence(one, other):
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
    assert [len(part) for part in held] == sizes
    assert [len(_keys(part)) for part in held] == sizes
    for one, other in itertools.combinations([train, *held], 2):
        assert not _keys(one) & _keys(other)
    # the rest of the pairs is there, whole
    taken = set().union(*map(_keys, held))
    assert sorted(train) == sorted(pair for pair in pairs if corpus.sentence_key(pair[0]) not in taken)
    firsts = {}
    for pair in pairs:
        firsts.setdefault(corpus.sentence_key(pair[0]), pair)
    assert all(firsts[corpus.sentence_key(pair[0])] == pair for part in held for pair in part)


def test_the_seed_decides_what_is_held_out():
    pairs = _sentences(300, 4, 0)
    assert corpus.hold_out(pairs, [20, 30], 1) == corpus.hold_out(pairs, [20, 30], 1)
    assert corpus.hold_out(pairs, [20, 30], 1)[1] != corpus.hold_out(pairs, [20, 30], 2)[1]


def test_a_negative_part_is_refused():
    with pytest.raises(ValueError, match=r"at least 0 pairs, got \[5, -1\]"):
        corpus.hold_out(_sentences(20, 4, 0), [5, -1], 0)


TEXT = ["the cat sat on the mat", "the dog and the cat", "der Hund und die Katze", "größer, weiter, höher!", "你好"] * 4


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train(TEXT, 300)


# unassigned characters may be composed by one Unicode version and not by another
_texts = st.text(st.characters(exclude_categories=["Cs", "Cn"])).map(
    lambda text: " ".join(unicodedata.normalize("NFC", text).split())
)


@given(st.lists(_texts, max_size=4))
def test_ids_and_text_are_each_others_inverse(vocabulary, lines):
    rows = vocabulary.encode(lines)
    assert len(rows) == len(lines)
    assert vocabulary.decode(rows) == lines
    assert all(SPECIAL <= i < len(vocabulary) for row in rows for i in row)
    # start, end and padding have no text wherever they stand
    assert vocabulary.decode([[START, *row, PAD, END] for row in rows]) == lines


@pytest.mark.parametrize(
    "line", ["</s>", "<s>", "<pad>", "<unk>", "[PAD]", "\x00\x01\x02", "\u2028", "e\u0301", "\ufeff", "👩‍👩‍👧"]
)
def test_no_text_has_special_ids(vocabulary, line):
    (row,) = vocabulary.encode([line])
    assert row
    assert min(row) >= SPECIAL
    assert vocabulary.decode([row]) == [" ".join(unicodedata.normalize("NFC", line).split())]


def test_composed_and_decomposed_text_have_the_same_ids():
    vocabulary = Vocabulary.train(TEXT, 5000)
    assert vocabulary.encode(["gro\u0308ßer"]) == vocabulary.encode(["größer"])
    assert len(vocabulary.encode(["größer"])[0]) == 1


def test_nothing_has_no_ids(vocabulary):
    assert vocabulary.encode([]) == []
    assert vocabulary.encode(["", ""]) == [[], []]
    assert vocabulary.decode([]) == []
    assert vocabulary.decode([[], [START, END]]) == ["", ""]


def test_ids_that_are_no_text_still_decode_to_one_line(vocabulary):
    found = vocabulary.decode([[i] for i in range(len(vocabulary))])
    assert all(len(text.splitlines()) <= 1 for text in found)
    assert vocabulary.decode(vocabulary.encode(["a\nb\u2028c\r\n d"])) == ["a b c d"]
    assert "\ufffd" in found
    assert "the" in found


@pytest.mark.parametrize("size", [BYTES + SPECIAL, BYTES + SPECIAL + 1, 290, 5000])
def test_a_vocabulary_is_no_larger_than_asked(size):
    vocabulary = Vocabulary.train(TEXT, size)
    assert BYTES + SPECIAL <= len(vocabulary) <= size
    if size <= 290:
        assert len(vocabulary) == size
    assert vocabulary.decode(vocabulary.encode(["nie gesehen: żółć"])) == ["nie gesehen: żółć"]


def test_the_smallest_vocabulary_is_bytes():
    assert [len(row) for row in Vocabulary.train(TEXT, 259).encode(["the", "ö"])] == [1 + 3, 1 + 2]


@pytest.mark.parametrize("size", [-1, 0, 258])
def test_a_vocabulary_too_small_is_refused(size):
    with pytest.raises(ValueError, match=rf"a vocabulary must have at least 259 ids, got {size}"):
        Vocabulary.train(TEXT, size)


def test_a_vocabulary_is_saved_and_loaded(vocabulary):
    again = Vocabulary(vocabulary.save_text())
    assert again == vocabulary
    assert len(again) == len(vocabulary)
    assert again.encode(TEXT) == vocabulary.encode(TEXT)
    assert again.save_text() == vocabulary.save_text()
    assert vocabulary != Vocabulary.train(TEXT, 299)
    assert vocabulary != "a vocabulary"


def test_training_a_vocabulary_again_gives_the_same(vocabulary):
    """In another process too, whose hashes are seeded otherwise."""
    code = f"from examples.translation.vocabulary import Vocabulary; print(Vocabulary.train({TEXT!r}, 300).save_text())"
    done = subprocess.run([sys.executable, "-X", "utf8", "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout.decode().rstrip("\n") == vocabulary.save_text()
    assert Vocabulary.train(iter(TEXT), 300).save_text() == vocabulary.save_text()


@pytest.mark.parametrize("text", ["", "{}", "null", "hello", '{"model": 1}'])
def test_what_is_no_vocabulary_is_refused(text):
    with pytest.raises(ValueError, match=r"a vocabulary must be the JSON of a tokenizer: "):
        Vocabulary(text)


def _pairs(lengths):
    """Pairs of so many source tokens and so many target tokens that are asked for; every pair's ids are its own."""
    source = [[SPECIAL + 2 * number] * (length - 1) + [END] for number, (length, _) in enumerate(lengths)]
    target = [[START] + [SPECIAL + 2 * number + 1] * (length - 1) + [END] for number, (_, length) in enumerate(lengths)]
    return Pairs(Ragged.of(source), Ragged.of(target))


def _rows(padded):
    """The rows without what is padding on their right; padding anywhere else stays."""
    rows = []
    for row in padded.tolist():
        while row and row[-1] == PAD:
            row.pop()
        rows.append(row)
    return rows


_lengths = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), max_size=40)


@given(_lengths, st.integers(1, 60), st.integers(1, 13), st.none() | st.integers(0, 9))
@example([(9, 1), *[(1, 2)] * 6], 20, 12, None)  # the first is wider than those that follow
def test_every_pair_comes_once(lengths, tokens, longest, seed):
    pairs = _pairs(lengths)
    parts = pairs.batches(tokens, longest, seed)
    assert sorted(i for part in parts for i in part.tolist()) == [
        number for number, pair in enumerate(lengths) if max(pair) <= longest
    ]
    for part in parts:
        batch = pairs.batch(part)
        rows, width = len(part), max(batch.source.shape[1], batch.target.shape[1] - 1)
        assert rows
        assert rows == 1 or rows * width <= tokens
        assert batch.tokens == sum(lengths[i][1] for i in part.tolist())


@given(_lengths, st.integers(1, 60), st.integers(0, 9))
def test_an_epoch_follows_from_its_seed(lengths, tokens, seed):
    one, again = (_pairs(lengths).batches(tokens, 12, seed) for _ in range(2))
    assert [part.tolist() for part in one] == [part.tolist() for part in again]


def test_epochs_differ():
    lengths = [(1 + number % 5, 1 + number % 7) for number in range(200)]
    pairs = _pairs(lengths)
    epochs = [[part.tolist() for part in pairs.batches(40, 12, seed)] for seed in (0, 1)]
    assert epochs[0] != epochs[1]
    # other pairs stand side by side, not only other batches first
    assert {frozenset(part) for part in epochs[0]} != {frozenset(part) for part in epochs[1]}
    # long and short batches come in turn
    widths = [max(lengths[i][1] for i in part) for part in epochs[0]]
    assert widths != sorted(widths)


def test_without_a_seed_batches_go_from_short_to_long():
    draws = random.Random(0)
    lengths = [(draws.randint(1, 9), draws.randint(1, 9)) for _ in range(100)]
    order = [lengths[i] for part in _pairs(lengths).batches(50, 9, None) for i in part.tolist()]
    assert order == sorted(lengths, key=lambda pair: (pair[1], pair[0]))


def test_batches_are_filled():
    """Each begins with the pair that its forerunner had no room for."""
    lengths = [(n, n) for n in range(1, 30)]
    parts = [part.tolist() for part in _pairs(lengths).batches(60, 30, None)]
    for part, following in itertools.pairwise(parts):
        assert (len(part) + 1) * lengths[following[0]][0] > 60


@given(st.lists(st.lists(st.integers(1, 2**31 - 1), max_size=7), max_size=9), st.data())
def test_lists_are_padded_on_the_right(rows, data):
    ragged = Ragged.of(rows)
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)) if rows else []
    padded = ragged.padded(torch.tensor(index, dtype=torch.long))
    assert padded.dtype == torch.long
    assert padded.shape == (len(index), max((len(rows[i]) for i in index), default=0))
    assert _rows(padded) == [rows[i] for i in index]
    assert ragged.lengths.tolist() == [len(row) for row in rows]


@given(st.lists(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=4), max_size=4))
def test_joined_lists_are_those_of_all_parts(parts):
    joined, whole = (
        Ragged.joined([Ragged.of(part) for part in parts]),
        Ragged.of([row for part in parts for row in part]),
    )
    for one, other in ((joined.ids, whole.ids), (joined.starts, whole.starts)):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype


def test_pairs_are_encoded_with_start_and_end(vocabulary, monkeypatch):
    pairs = [("the cat", "die Katze"), ("a dog", "Hund"), ("mat", "")]
    expected = [vocabulary.encode(side) for side in zip(*pairs, strict=True)]
    for at_once in (1, 2, 10):
        monkeypatch.setattr("examples.translation.batches.ENCODED_AT_ONCE", at_once)
        batch = Pairs.encode(pairs, vocabulary).batch(torch.arange(3))
        assert _rows(batch.source) == [[*row, END] for row in expected[0]]
        assert _rows(batch.target) == [[START, *row, END] for row in expected[1]]
        assert batch.tokens == sum(len(row) + 1 for row in expected[1])


def test_pairs_are_saved_and_loaded(tmp_path, vocabulary):
    for number, pairs in enumerate(([("the cat", "die Katze"), ("a dog", "Hund")], [])):
        saved = Pairs.encode(pairs, vocabulary)
        saved.save(tmp_path / f"{number}.pt", vocabulary)
        loaded = Pairs.load(tmp_path / f"{number}.pt", vocabulary)
        assert len(loaded) == len(pairs)
        for side in ("source", "target"):
            for part in ("ids", "starts"):
                one, other = (getattr(getattr(pairs, side), part) for pairs in (saved, loaded))
                assert one.dtype == other.dtype
                assert torch.equal(one, other)


def test_ids_of_another_vocabulary_are_refused(tmp_path, vocabulary):
    Pairs.encode([("a", "b")], vocabulary).save(tmp_path / "pairs.pt", Vocabulary.train(["a b"], 260))
    with pytest.raises(ValueError, match=r"pairs\.pt must hold ids of the vocabulary beside it"):
        Pairs.load(tmp_path / "pairs.pt", vocabulary)
    torch.save({"model": {}}, tmp_path / "pairs.pt")
    with pytest.raises(ValueError, match=r"pairs\.pt must be ids that prepare wrote"):
        Pairs.load(tmp_path / "pairs.pt", vocabulary)


def test_a_file_of_something_else_is_refused(tmp_path, vocabulary):
    with pytest.raises(ValueError, match=r"pairs\.tsv must be a file that this program saved"):
        Pairs.load(_file(tmp_path, "pairs.tsv", "a\tb\n" * 100), vocabulary)


def test_no_pairs_make_no_batches(vocabulary):
    empty = Pairs.encode([], vocabulary)
    assert len(empty) == 0
    for seed in (None, 0):
        assert empty.batches(100, 10, seed) == []
        assert _pairs([(9, 9), (3, 8)]).batches(100, 5, seed) == []


def test_a_batch_counts_what_is_asked_for():
    batch = Batch(torch.tensor([[3, END]]), torch.tensor([[START, 4, 5, END, PAD]]))
    assert batch.tokens == 3
    assert batch.to(torch.device("cpu")).tokens == 3


def _prepare(folder, files, *options):
    sizes = ["--held-out", "15", "--vocabulary-size", "300", "--seed", "3"]
    return cli.main(["prepare", str(folder), "--train", *map(str, files), *sizes, *map(str, options)])


def _tab_separated(pairs):
    return "".join(f"{source}\t{target}\tby someone\n" for source, target in pairs)


UNSEEN = ("--max-words", 5, "--unseen", "6-7", "8-12")
FILES = {
    "train.pt",
    "valid.pt",
    "valid.tsv",
    "test.tsv",
    "test-6-7.tsv",
    "test-8-12.tsv",
    "vocabulary.json",
    "sizes.json",
}


@pytest.fixture(scope="module")
def sentences():
    return _sentences(500, 12, 7)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, sentences):
    folder = tmp_path_factory.mktemp("prepared")
    assert _prepare(folder / "data", [_file(folder, "all.tsv", _tab_separated(sentences))], *UNSEEN) == 0
    return folder / "data"


def _text(folder):
    """The training pairs as text, and the parts to measure on."""
    vocabulary = Vocabulary((folder / "vocabulary.json").read_text(encoding="utf-8"))
    pairs = Pairs.load(folder / "train.pt", vocabulary)
    batch = pairs.batch(torch.arange(len(pairs)))
    train = list(zip(vocabulary.decode(batch.source.tolist()), vocabulary.decode(batch.target.tolist()), strict=True))
    return {"train": train} | {path.stem: corpus.read_corpus([path]) for path in folder.glob("*.tsv")}


def test_prepared_parts_are_disjoint(prepared, sentences):
    parts = _text(prepared)
    for one, other in itertools.combinations(parts.values(), 2):
        assert not _keys(one) & _keys(other)
    assert all(set(part) <= set(sentences) for part in parts.values())
    held = _keys(parts["valid"]) | _keys(parts["test"])
    short = [pair for pair in sentences if len(pair[0].split()) <= 5]
    assert sorted(parts["train"]) == sorted(pair for pair in short if corpus.sentence_key(pair[0]) not in held)


def test_prepared_lengths_are_as_told(prepared):
    lengths = {name: {len(source.split()) for source, _ in part} for name, part in _text(prepared).items()}
    assert lengths["train"] == {1, 2, 3, 4, 5}
    assert lengths["valid"] | lengths["test"] <= {1, 2, 3, 4, 5}
    assert lengths["test-6-7"] == {6, 7}
    assert lengths["test-8-12"] <= set(range(8, 13))
    assert len(lengths["test-8-12"]) > 2


def test_prepare_writes_sizes_and_ids(prepared):
    parts, vocabulary = _text(prepared), Vocabulary((prepared / "vocabulary.json").read_text(encoding="utf-8"))
    assert {path.name for path in prepared.iterdir()} == FILES
    sizes = json.loads((prepared / "sizes.json").read_text())
    assert sizes == {name: len(part) for name, part in parts.items()} | {"vocabulary": len(vocabulary)}
    assert [sizes[name] for name in ("valid", "test", "test-6-7", "test-8-12")] == [15] * 4
    assert len(vocabulary) <= 300
    valid, again = Pairs.load(prepared / "valid.pt", vocabulary), Pairs.encode(parts["valid"], vocabulary)
    assert torch.equal(valid.source.ids, again.source.ids)
    assert torch.equal(valid.target.ids, again.target.ids)


def test_paired_files_give_the_same(prepared, tmp_path, sentences):
    files = [
        _file(tmp_path, "all.a.gz", "".join(f"{source}\r\n" for source, _ in sentences)),
        _file(tmp_path, "all.b", "\ufeff" + "\n".join(target for _, target in sentences)),
    ]
    assert _prepare(tmp_path / "data", files, *UNSEEN) == 0
    for name in FILES:
        one, other = prepared / name, tmp_path / "data" / name
        if name.endswith(".pt"):
            a, b = torch.load(one), torch.load(other)
            assert a["vocabulary"] == b["vocabulary"]
            assert all(torch.equal(*both) for both in zip(a["pairs"], b["pairs"], strict=True))
        else:
            assert one.read_bytes() == other.read_bytes()


def test_parts_that_are_given_are_taken(tmp_path, sentences):
    train = _file(tmp_path, "train.tsv", _tab_separated(sentences))
    valid, test = [("x y", "y x"), ("z", "z")], [("long " * 30 + "line", "t")] * 2
    files = [_file(tmp_path, f"test.{side}", "".join(f"{pair[i]}\n" for pair in test)) for i, side in enumerate("ab")]
    given = ["--valid", _file(tmp_path, "valid.tsv", _tab_separated(valid)), "--test", *files]
    assert _prepare(tmp_path / "data", [train], "--max-words", 5, *given) == 0
    parts = _text(tmp_path / "data")
    assert sorted(parts["train"]) == sorted(pair for pair in sentences if len(pair[0].split()) <= 5)
    assert parts["valid"] == valid
    assert parts["test"] == test


def test_given_parts_that_were_trained_on_are_told(tmp_path, sentences, capsys):
    train = _file(tmp_path, "train.tsv", _tab_separated(sentences))
    given = ["--valid", _file(tmp_path, "valid.tsv", _tab_separated([*sentences[:3], ("x y", "y x")]))]
    assert _prepare(tmp_path / "data", [train], *given) == 0
    held_out = {source for source, _ in corpus.read_corpus([tmp_path / "data" / "test.tsv"])}
    shared = sum(source not in held_out for source, _ in sentences[:3])
    assert f"note: {shared} of the 4 sources of valid stand among the training pairs too" in capsys.readouterr().out


def test_tests_of_an_earlier_prepare_are_removed(tmp_path, sentences):
    path = _file(tmp_path, "all.tsv", _tab_separated(sentences))
    assert _prepare(tmp_path / "data", [path], *UNSEEN) == 0
    (tmp_path / "data" / "test-own.tsv").write_text("a\tb\n")
    assert _prepare(tmp_path / "data", [path], "--max-words", 5, "--unseen", "6-7") == 0
    assert {path.name for path in (tmp_path / "data").iterdir()} == FILES - {"test-8-12.tsv"} | {"test-own.tsv"}


def test_a_dash_makes_no_unseen_sentence(tmp_path):
    """With a dash between spaces a sentence has a word more, but the same words: it may have been trained on."""
    pairs = [(f"a b c d{number}", "x") for number in range(40)]
    longer = [(f"a b - c d{number}", "x") for number in range(40)] + [
        (f"a b c d e f{number}", "x") for number in range(9)
    ]
    path = _file(tmp_path, "all.tsv", _tab_separated(pairs + longer))
    assert _prepare(tmp_path / "data", [path], "--max-words", 4, "--unseen", "5-5", "6-7") == 2
    assert not (tmp_path / "data").exists()
    assert _prepare(tmp_path / "data", [path], "--max-words", 4, "--unseen", "5-7") == 0
    parts = _text(tmp_path / "data")
    assert len(parts["train"]) == 10
    assert _keys(parts["test-5-7"]) == {f"a b c d e f{number}" for number in range(9)}


def test_a_dash_moves_no_sentence_to_another_unseen_part(tmp_path):
    pairs = [(f"a{number}", "x") for number in range(40)]
    pairs += [(f"a b{dash} c{number}", "x") for number in range(15) for dash in ("", " -")] + [("a b c d", "x")]
    path = _file(tmp_path, "all.tsv", _tab_separated(pairs))
    assert _prepare(tmp_path / "data", [path], "--max-words", 1, "--unseen", "3-3", "4-4") == 0
    parts = _text(tmp_path / "data")
    assert len(parts["test-3-3"]) == 15
    assert parts["test-4-4"] == [("a b c d", "x")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--unseen", "6-7"), r"--unseen must begin above --max-words, got \['6-7'\] and None"),
        (("--max-words", 6, "--unseen", "8-9", "6-7"), r"--unseen must begin above --max-words"),
        (("--max-words", 5, "--unseen", "7-6"), r"--unseen must hold ranges such as 11-13, got '7-6'"),
        (("--max-words", 5, "--unseen", "7"), r"--unseen must hold ranges such as 11-13, got '7'"),
        (("--max-words", 5, "--unseen", "40-50"), r"--unseen 40-50 must hold sources of so many words, found none"),
        (("--held-out", 5000), r"10000 sentences cannot be held out of \d+ different ones"),
        (("--held-out", -1), r"at least 0 pairs, got \[-1, -1\]"),
        (("--held-out", 0), r"valid must have at least one pair, got none"),
        (("--max-words", 0), r"30 sentences cannot be held out of 0 different ones"),
        (("--vocabulary-size", 100), r"a vocabulary must have at least 259 ids, got 100"),
        (("--test", "nowhere.tsv"), r"nowhere\.tsv"),
    ],
)
def test_wrong_options_are_refused_and_nothing_is_written(tmp_path, capsys, sentences, options, message):
    path = _file(tmp_path, "all.tsv", _tab_separated(sentences))
    assert _prepare(tmp_path / "data", [path], *options) == 2
    assert re.search(f"^error: .*{message}", capsys.readouterr().err, re.MULTILINE)
    assert not (tmp_path / "data").exists()
