"""Tests the translator's search against enumeration and plain loops, and the measures of its translations."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")

import sacrebleu

from examples.translation import evaluation, parallel
from examples.translation.batches import Pairs
from examples.translation.model import Translator
from examples.translation.search import Hypothesis, Search, search, translate
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


def _plain_beam(model, source, how):
    """The rules of the search for one sentence, step by step, without stopping early."""
    alive, finished = [((), 0.0)], []
    while alive and len(finished) < how.beam:
        allowed = range(END, model.embedding.num_embeddings)
        if len(alive[0][0]) == len(source) + how.extra:
            allowed = [END]
        candidates = []
        rows = _following(model, source, [ids for ids, _ in alive])
        for (ids, likelihood), following in zip(alive, rows, strict=True):
            candidates += [((*ids, token), likelihood + following[token]) for token in allowed]
        candidates.sort(key=lambda candidate: -candidate[1])
        for ids, likelihood in candidates[: how.beam]:
            if ids[-1] == END:
                finished.append(Hypothesis(ids[:-1], likelihood / ((5 + len(ids)) / 6) ** how.length_penalty))
        alive = [candidate for candidate in candidates[: 2 * how.beam] if candidate[0][-1] != END][: how.beam]
    return max(finished, key=lambda hypothesis: hypothesis.score)


@pytest.mark.parametrize(
    ("positions", "beam", "penalty"),
    [("none", 1, 0.6), ("sinusoidal", 2, 0.0), ("relative", 3, 0.6), ("both", 5, 2.0)],
)
@pytest.mark.parametrize("cached", [True, False])
def test_a_narrow_beam_keeps_the_rules_for_each_sentence_of_a_batch(positions, beam, penalty, cached):
    how, found = Search(beam, penalty, 2, cached), []
    for seed, ids in itertools.product(range(6), (6, 9)):
        model, sources = _sharp(seed, ids, positions=positions), _sources(seed, ids, [3, 1, 5])
        found += search(model, functional.pad(_padded(sources), (0, seed), value=PAD), how)
        expected = [_plain_beam(model, source, how) for source in sources]
        assert [each.ids for each in found[-3:]] == [each.ids for each in expected]
        assert [each.score for each in found[-3:]] == pytest.approx([each.score for each in expected], abs=1e-9, rel=0)
    # translations that were always empty or repeated one id would test little
    assert len({len(each.ids) for each in found}) > 3
    assert sum(len(set(each.ids)) > 1 for each in found) >= 5


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train(LINES * 3, 290)


@pytest.fixture(scope="module")
def translator(vocabulary):
    return _sharp(3, len(vocabulary))


QUICK = Search(2, 0.6, 3)


def test_translations_come_in_the_order_of_the_lines(translator, vocabulary):
    lines = [*LINES, "你好", "👩‍👩‍👧", "</s>", "a\u2028b", "\x00"]
    expected = [
        vocabulary.decode([search(translator, torch.tensor([[*row, END]]), QUICK)[0].ids])[0] if line.strip() else ""
        for line, row in zip(lines, vocabulary.encode(lines), strict=True)
    ]
    assert len(set(expected)) > 4
    for batch_tokens in (1, 25, 10_000):
        assert translate(translator, vocabulary, lines, QUICK, batch_tokens=batch_tokens) == expected
    translator.train()
    assert translate(translator, vocabulary, lines[::-1], QUICK, batch_tokens=25) == expected[::-1]
    assert translator.training
    translator.eval()


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
    monkeypatch.setattr("examples.translation.batches.ENCODED_AT_ONCE", 3)
    rows = [[vocabulary.encode([side])[0] for side in pair] for pair in PAIRS]
    expected = sum(
        translator(*(torch.tensor([row]) for row in ([*source, END], [START, *target], [*target, END])))[1].item()
        for source, target in rows
    )
    tokens = sum(len(target) + 1 for _, target in rows)
    pairs = Pairs.encode(PAIRS, vocabulary)
    for batch_tokens in (1, 10_000):
        found = evaluation.negative_log_likelihood(
            parallel.Alone(translator), pairs, pairs.batches(batch_tokens, 1000, None)
        )
        assert found == (pytest.approx(expected, rel=1e-6), tokens)
    result, _ = evaluation.evaluate(translator, vocabulary, PAIRS, QUICK)
    assert (result["sentences"], result["tokens"]) == (4, tokens)
    assert result["nll"] == pytest.approx(expected / tokens, rel=1e-6)
    assert result["perplexity"] == pytest.approx(math.exp(expected / tokens), rel=1e-6)


def test_measures_are_those_of_sacrebleu(translator, vocabulary):
    result, found = evaluation.evaluate(translator, vocabulary, PAIRS, QUICK)
    assert found == translate(translator, vocabulary, [source for source, _ in PAIRS], QUICK)
    found, references = ["die Katze saß", "ein Hund saß", "Matte.", "und"], [[target for _, target in PAIRS]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "translate", lambda *_, **__: found)
        result, _ = evaluation.evaluate(translator, vocabulary, PAIRS, QUICK)
    assert result["bleu"] == sacrebleu.corpus_bleu(found, references).score
    assert result["chrf"] == sacrebleu.corpus_chrf(found, references).score > 0
    assert "tok:13a" in result["signature"].split("|")


def test_scores_and_length_ratios_come_by_the_words_of_the_source(translator, vocabulary, monkeypatch):
    pairs = [(" ".join(["cat"] * words), "eins zwei drei vier fünf") for words in (5, 1, 6, 60)]
    found = ["eins zwei drei vier fünf", "eins", "eins zwei drei vier fünf sechs", "eins zwei drei vier"]
    monkeypatch.setattr(evaluation, "translate", lambda *_, **__: found)
    result, _ = evaluation.evaluate(translator, vocabulary, pairs, QUICK)
    assert result["length_ratio"] == (5 + 1 + 6 + 4) / 20
    rows = result["by_length"]
    assert [(row["words"], row["sentences"]) for row in rows] == [("1-5", 2), ("6-10", 1), ("51 or more", 1)]
    assert [row["length_ratio"] for row in rows] == [6 / 10, 6 / 5, 4 / 5]
    given = ["eins zwei drei vier fünf"]
    assert rows[0]["bleu"] == sacrebleu.corpus_bleu(found[:2], [given * 2]).score
    assert rows[2]["bleu"] == sacrebleu.corpus_bleu(found[3:], [given]).score
    assert rows[1]["chrf"] == sacrebleu.corpus_chrf(found[2:3], [given]).score
