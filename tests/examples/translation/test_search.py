"""Tests the translator's search against enumeration and plain loops, and the measures of its translations."""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")

import sacrebleu

from examples.translation import evaluation
from examples.translation.batches import Pairs
from examples.translation.bootstrap import corpus_bleu
from examples.translation.model import Translator
from examples.translation.search import Hypothesis, Search, search, search_memory, translate
from examples.translation.settings import ModelSettings
from examples.translation.vocabulary import END, PAD, SPECIAL, START, Vocabulary

TINY = ModelSettings(width=8, heads=2, layers=2, hidden=16, max_distance=2, dropout=0.0)
LINES = ["the cat sat on the mat", "a dog", "", "the dog and the cat", "   ", "mat", "on and on and on they sat"]


def _sharp(seed, ids, **settings):
    """A random translator in float64 whose translations differ in ids, in length and in score."""
    model = Translator(replace(TINY, **settings), ids).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 or name.endswith("bias"):
                parameter.normal_(std=0.3, generator=generator)
        # sharp and of any sign: otherwise the model would repeat the last token
        model.embedding.weight.normal_(generator=generator)
        model.transformer.decoder.norm.weight.normal_(std=2 + 4 * (seed % 2), generator=generator)
    return model


def _padded(rows):
    return torch.tensor([[*row, *[PAD] * (max(map(len, rows)) - len(row))] for row in rows])


def _sources(seed, ids, lengths):
    """Rows of random ids with their end, of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [[*torch.randint(SPECIAL, ids, (length - 1,), generator=generator).tolist(), END] for length in lengths]


@torch.no_grad()
def _following(model, source, beginnings):
    """Log-probabilities of the next token after each of ``beginnings`` of one source, without cache and padding."""
    memory, padding = model.encode(torch.tensor([source]).expand(len(beginnings), -1))
    given = torch.tensor([[START, *ids] for ids in beginnings])
    return model.decode(given, memory, padding)[:, -1].log_softmax(-1).tolist()


def _plain_beam(following, ids, limit, how):
    """The rules of the search for one sentence, step by step, without stopping early."""
    alive, finished = [((), 0.0)], []
    while alive and len(finished) < how.beam:
        allowed = [END] if len(alive[0][0]) == limit else range(END, ids)
        candidates = []
        for (begun, likelihood), row in zip(alive, following([begun for begun, _ in alive]), strict=True):
            candidates += [((*begun, token), likelihood + row[token]) for token in allowed]
        candidates.sort(key=lambda candidate: -candidate[1])
        for begun, likelihood in candidates[: how.beam]:
            if begun[-1] == END:
                finished.append(Hypothesis(begun[:-1], likelihood / ((5 + len(begun)) / 6) ** how.length_penalty))
        alive = [candidate for candidate in candidates[: 2 * how.beam] if candidate[0][-1] != END][: how.beam]
    return max(finished, key=lambda hypothesis: hypothesis.score)


@pytest.mark.parametrize(
    ("positions", "beam", "penalty"),
    [("none", 1, 0.6), ("sinusoidal", 2, 0.0), ("relative", 3, 0.6), ("both", 5, 2.0)],
)
def test_a_narrow_beam_keeps_the_rules_for_each_sentence_of_a_batch(positions, beam, penalty):
    how, found = Search(beam, penalty, 2), []
    for seed, ids in [(0, 6), (1, 9), (2, 6), (3, 9), (4, 6), (5, 9)]:
        model, sources = _sharp(seed, ids, positions=positions), _sources(seed, ids, [3, 1, 5])
        found += search(model, functional.pad(_padded(sources), (0, seed), value=PAD), how)
        expected = [_plain_beam(partial(_following, model, source), ids, len(source) + 2, how) for source in sources]
        assert [each.ids for each in found[-3:]] == [each.ids for each in expected]
        assert [each.score for each in found[-3:]] == pytest.approx([each.score for each in expected], abs=1e-9, rel=0)
    # translations that were always empty or repeated one id would test little
    assert len({len(each.ids) for each in found}) > 2
    assert sum(len(set(each.ids)) > 1 for each in found) >= 2


class Chains:
    """Next ids by the last one only, with a table for each row of a batch."""

    transformer = SimpleNamespace(new_cache=list)  # an empty cache, which stays empty

    def __init__(self, logits):
        self.logits = logits

    def decode(self, ids, rows, *, cache=None):
        return self.logits[rows[:, None], ids]

    def following(self, row, beginnings):
        return [self.logits[row, [START, *ids][-1]].log_softmax(-1).tolist() for ids in beginnings]


@pytest.mark.parametrize("beam", [1, 2, 3])
def test_chains_that_end_early_and_late_are_searched_by_the_rules(beam):
    ids, rows, limit = 7, 200, 4
    logits = torch.randn(rows, ids, ids, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[..., END] += torch.linspace(-1, 3, rows, dtype=torch.float64)[:, None]  # many ends among the best candidates
    model, how = Chains(2 * logits), Search(beam, 0.6)
    found = search_memory(model, (torch.arange(rows),), [limit] * rows, how)
    expected = [_plain_beam(partial(model.following, row), ids, limit, how) for row in range(rows)]
    assert [each.ids for each in found] == [each.ids for each in expected]


def test_as_many_go_on_as_the_beam_is_wide_when_all_of_them_also_end():
    """The fourth candidate of a beam of two goes on after two ends among the first three, and wins."""
    a, b, c, d = range(SPECIAL, SPECIAL + 4)
    chances = torch.full((1, 7, 7), 0.001, dtype=torch.float64)
    for last, row in {START: {a: 0.5, b: 0.49}, a: {END: 0.4, c: 0.35}, b: {END: 0.3, d: 0.28}, d: {END: 0.98}}.items():
        for token, chance in row.items():
            chances[0, last, token] = chance
    chances[..., PAD] += 1 - chances.sum(-1)
    model, how = Chains(chances.log()), Search(2, 2.0)
    assert search_memory(model, (torch.tensor([0]),), [4], how)[0].ids == (b, d)


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train(LINES * 3, 290)


@pytest.fixture(scope="module")
def translator(vocabulary):
    return _sharp(3, len(vocabulary))


QUICK = Search(2, 0.6, 3)


def test_translations_come_in_the_order_of_the_lines(translator, vocabulary, monkeypatch):
    lines = [*LINES, "你好", "👩‍👩‍👧", "</s>", "a\u2028b", "\x00"]
    expected = [
        vocabulary.decode([search(translator, torch.tensor([[*row, END]]), QUICK)[0].ids])[0] if line.strip() else ""
        for line, row in zip(lines, vocabulary.encode(lines), strict=True)
    ]
    assert len(set(expected)) > 4
    for batch_tokens in (1, 25, 10_000):
        monkeypatch.setattr("examples.translation.search.BATCH_TOKENS", batch_tokens)
        assert translate(translator, vocabulary, lines, QUICK) == expected


def test_the_loss_is_cross_entropy_with_smoothing_whatever_the_padding():
    model = _sharp(0, 11)
    source = _padded(_sources(0, 11, [4, 2, 6]))
    target = _padded([[START, *row] for row in _sources(1, 11, [3, 5, 1])])
    padded = functional.pad(target, (0, 3), value=PAD)
    plain = source, target[:, :-1], target[:, 1:]
    wider = functional.pad(source, (0, 5), value=PAD), padded[:, :-1], padded[:, 1:]
    logits = model.decode(target[:, :-1], *model.encode(source)).flatten(0, 1)
    for smoothing in (0.0, 0.1):
        loss, nll = (
            functional.cross_entropy(
                logits, target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=some, reduction="sum"
            ).item()
            for some in (smoothing, 0.0)
        )
        for some in (model(*plain, smoothing), model(*wider, smoothing)):
            assert [value.item() for value in some] == pytest.approx([loss, nll], rel=1e-6)


PAIRS = [("the cat", "die Katze"), ("a dog sat", "ein Hund saß"), ("mat", "Matte"), ("on and on", "weiter und weiter")]


def test_likelihood_is_that_of_one_sentence_after_another(translator, vocabulary, monkeypatch):
    monkeypatch.setattr("examples.translation.vocabulary.ENCODED_AT_ONCE", 3)
    rows = [[*vocabulary.encode(pair)] for pair in PAIRS]
    expected = sum(
        translator(*(torch.tensor([row]) for row in ([*source, END], [START, *target], [*target, END])))[1].item()
        for source, target in rows
    )
    tokens = sum(len(target) + 1 for _, target in rows)
    pairs = Pairs.encode(PAIRS, vocabulary)
    for batch_tokens in (1, 10_000):
        found = evaluation.negative_log_likelihood(translator, pairs, pairs.batches(batch_tokens))
        assert found == (pytest.approx(expected, rel=1e-6), tokens)
    result, *_ = evaluation.evaluate(translator, vocabulary, PAIRS, QUICK)
    assert (result["sentences"], result["tokens"]) == (4, tokens)
    assert result["nll"] == pytest.approx(expected / tokens, rel=1e-6)
    assert result["perplexity"] == pytest.approx(math.exp(expected / tokens), rel=1e-6)


def test_measures_are_those_of_sacrebleu(translator, vocabulary):
    result, statistics, found = evaluation.evaluate(translator, vocabulary, PAIRS, QUICK)
    assert found == translate(translator, vocabulary, [source for source, _ in PAIRS], QUICK)
    assert corpus_bleu(statistics.sum(0).tolist()) == result["bleu"]
    found, references = ["die Katze saß", "ein Hund saß", "Matte.", ""], [[target for _, target in PAIRS]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "translate", lambda *_, **__: found)
        result, *_ = evaluation.evaluate(translator, vocabulary, PAIRS, QUICK)
    assert result["bleu"] == sacrebleu.corpus_bleu(found, references).score
    assert result["chrf"] == sacrebleu.corpus_chrf(found, references).score > 0
    assert "tok:13a" in result["signature"].split("|")
