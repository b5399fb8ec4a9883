"""The translator's search against enumeration and plain loops, and what is measured of its translations."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")

import sacrebleu

from examples.translation import evaluation
from examples.translation.batches import Pairs
from examples.translation.model import Translator
from examples.translation.search import Hypothesis, Search, search, translate
from examples.translation.settings import POSITIONS, ModelSettings
from examples.translation.vocabulary import END, PAD, SPECIAL, START, Vocabulary

TINY = ModelSettings(width=8, heads=2, layers=2, hidden=16, max_distance=2, dropout=0.0)
LINES = [
    "the cat sat on the mat",
    "a dog",
    "",
    "the dog and the cat",
    "   ",
    "mat",
    "on and on and on they sat",
    "a cat",
]


def _sharp(seed, ids, **settings):
    """A random translator in float64 whose translations differ in ids, in length and in score."""
    model = Translator(replace(TINY, **settings), ids).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 or name.endswith("bias"):
                parameter.normal_(std=0.3, generator=generator)
        # sharp, and of any sign: else what was read last would be what is said next
        model.embedding.weight.normal_(generator=generator)
        model.transformer.decoder.norm.weight.normal_(std=2 + 4 * (seed % 2), generator=generator)
    return model


def _padded(rows):
    return torch.tensor([[*row, *[PAD] * (max(map(len, rows)) - len(row))] for row in rows])


def _sources(seed, ids, lengths):
    """Rows of random ids with their end, as long as ``lengths`` say."""
    generator = torch.Generator().manual_seed(seed)
    return [[*torch.randint(SPECIAL, ids, (length - 1,), generator=generator).tolist(), END] for length in lengths]


@torch.no_grad()
def _log_likelihoods(model, source, targets):
    """Of each of ``targets``, ids of one length and their end, given a single source; without any cache."""
    given = torch.tensor([[START, *target] for target in targets])
    wanted = torch.tensor([[*target, END] for target in targets])
    memory, padding = model.encode(torch.tensor([source]).expand(len(targets), -1))
    log_probs = model.decode(given, memory, padding).log_softmax(-1)
    return log_probs.gather(-1, wanted[..., None]).sum((1, 2)).tolist()


@torch.no_grad()
def _following(model, source, beginnings):
    """Log-probabilities of what follows each of ``beginnings`` of one source; without cache or padding."""
    memory, padding = model.encode(torch.tensor([source]).expand(len(beginnings), -1))
    given = torch.tensor([[START, *ids] for ids in beginnings])
    return model.decode(given, memory, padding)[:, -1].log_softmax(-1).tolist()


def _best_of_all(model, source, how):
    """The best of every translation that the limit allows."""
    size, best = model.embedding.num_embeddings, Hypothesis((), -math.inf)
    for length in range(len(source) + how.extra + 1):
        targets = list(itertools.product(range(SPECIAL, size), repeat=length))
        for ids, likelihood in zip(targets, _log_likelihoods(model, source, targets), strict=True):
            score = likelihood / ((5 + length + 1) / 6) ** how.length_penalty
            best = max(best, Hypothesis(ids, score), key=lambda hypothesis: hypothesis.score)
    return best


def _plain_beam(model, source, how):
    """The rules of the search for one sentence, step by step; it never stops because nothing better can come."""
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


def _plain_greedy(model, source, extra):
    """Take the likeliest id until it is the end, or until the end must come."""
    ids, likelihood = (), 0.0
    while True:
        (following,) = _following(model, source, [ids])
        following[PAD] = following[START] = -math.inf
        token = max(range(len(following)), key=following.__getitem__)
        if len(ids) == len(source) + extra:
            token = END
        likelihood += following[token]
        if token == END:
            return ids, likelihood
        ids = (*ids, token)


def _assert_same(found, expected):
    assert [hypothesis.ids for hypothesis in found] == [hypothesis.ids for hypothesis in expected]
    scores = [[hypothesis.score for hypothesis in some] for some in (found, expected)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-9, rel=0)


def _exhaustive(ids, lengths, penalty, extra):
    """A beam as wide as there are translations."""
    return Search(sum((ids - SPECIAL) ** length for length in range(max(lengths) + extra + 1)), penalty, extra)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("extra", [0, 1, 2])
@pytest.mark.parametrize(("ids", "lengths"), [(5, [1, 3, 2]), (6, [2, 1]), (7, [1, 2])])
def test_a_beam_that_leaves_nothing_out_finds_the_best_of_all(ids, lengths, extra, penalty):
    how = _exhaustive(ids, lengths, penalty, extra)
    for seed in range(6):
        model, sources = _sharp(seed, ids), _sources(seed, ids, lengths)
        _assert_same(search(model, _padded(sources), how), [_best_of_all(model, source, how) for source in sources])


def test_the_random_translators_are_not_too_simple():
    """Were their translations always empty, as long as they may be, or one id again and again, little would show."""
    best, beam, greedy = [], [], []
    for seed in range(20):
        best += search(_sharp(seed, 6), _padded(_sources(seed, 6, [1, 2])), _exhaustive(6, [1, 2], 0.6, 2))
        model, source = _sharp(seed, 9), _padded(_sources(seed, 9, [3, 1, 5]))
        beam, greedy = beam + search(model, source, Search(3)), greedy + search(model, source, Search(1))
    assert {len(found.ids) for found in best} == {0, 1, 2, 3, 4}
    assert sum(len(set(found.ids)) > 1 for found in best + beam) >= 15
    assert sum(one.ids != other.ids for one, other in zip(beam, greedy, strict=True)) >= 10


@pytest.mark.parametrize("beam", [2, 3, 5])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
def test_a_narrow_beam_keeps_the_rules(beam, penalty):
    how = Search(beam, penalty, 2)
    for seed, ids in itertools.product(range(10), (6, 9)):
        model, sources = _sharp(seed, ids), _sources(seed, ids, [3, 1, 5])
        _assert_same(search(model, _padded(sources), how), [_plain_beam(model, source, how) for source in sources])


@pytest.mark.parametrize("extra", [0, 3])
@pytest.mark.parametrize("cached", [True, False])
def test_a_beam_of_one_is_greedy(extra, cached):
    how, ended_early, ended_late = Search(1, 0.6, extra, cached), 0, 0
    for seed in range(6):
        model, sources = _sharp(seed, 8), _sources(seed, 8, [4, 1, 2, 6])
        greedy = [_plain_greedy(model, source, extra) for source in sources]
        expected = [Hypothesis(ids, how.normalized(likelihood, len(ids) + 1)) for ids, likelihood in greedy]
        _assert_same(search(model, _padded(sources), how), expected)
        late = sum(len(ids) == len(source) + extra for (ids, _), source in zip(greedy, sources, strict=True))
        ended_late, ended_early = ended_late + late, ended_early + len(sources) - late
    assert ended_late
    assert ended_early


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("beam", [1, 4])
def test_with_and_without_cache_are_alike(positions, beam):
    how = Search(beam, 0.6, 6)
    for seed in range(3):
        model = _sharp(seed, 9, positions=positions)
        source = _padded(_sources(seed, 9, [5, 1, 8, 3]))
        _assert_same(search(model, source, how), search(model, source, replace(how, cached=False)))


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("beam", [1, 4])
def test_a_sentence_gives_the_same_in_any_batch(positions, beam):
    how = Search(beam, 0.6, 4)
    for seed in range(3):
        model, sources = _sharp(seed, 9, positions=positions), _sources(seed, 9, [2, 7, 1, 4, 4, 11])
        alone = [search(model, torch.tensor([source]), how)[0] for source in sources]
        _assert_same(search(model, _padded(sources), how), alone)
        _assert_same(search(model, functional.pad(_padded(sources), (0, 3), value=PAD), how), alone)
        _assert_same(search(model, _padded(sources[::-1]), how), alone[::-1])


def test_a_higher_length_penalty_gives_no_shorter_translations():
    model, source = _sharp(0, 6), _padded(_sources(0, 6, [2, 3]))
    lengths = [
        [len(found.ids) for found in search(model, source, Search(400, penalty, 1))] for penalty in (0.0, 1.0, 4.0)
    ]
    assert all(a <= b for few, more in itertools.pairwise(lengths) for a, b in zip(few, more, strict=True))
    assert lengths[0] != lengths[-1]


def test_no_sentences_give_no_translations():
    assert search(_sharp(0, 5), torch.empty(0, 0, dtype=torch.long), Search()) == []


def test_a_beam_wider_than_the_vocabulary_works():
    model, sources = _sharp(1, 5), _sources(1, 5, [1, 2])
    how = Search(50, 0.6, 1)
    _assert_same(search(model, _padded(sources), how), [_best_of_all(model, source, how) for source in sources])


@pytest.mark.parametrize("beam", [1, 3])
def test_scores_that_are_no_numbers_are_refused(beam):
    model = _sharp(0, 6)
    with torch.no_grad():
        model.embedding.weight[END] = math.nan
    with pytest.raises(ValueError, match=r"scores must be numbers, got NaN"):
        search(model, torch.tensor([[3, END]]), Search(beam))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beam": 0}, r"beam must be at least 1, got 0"),
        ({"extra": -1}, r"extra must be at least 0, got -1"),
        ({"length_penalty": -0.5}, r"length_penalty must be a number of at least 0, got -0.5"),
    ],
)
def test_wrong_searches_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Search(**wrong)


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train(LINES * 3, 290)


@pytest.fixture(scope="module")
def translator(vocabulary):
    return _sharp(3, len(vocabulary))


QUICK = Search(2, 0.6, 3)


def test_translations_come_in_the_order_of_the_lines(translator, vocabulary):
    rows = vocabulary.encode(LINES)
    expected = [
        vocabulary.decode([search(translator, torch.tensor([[*row, END]]), QUICK)[0].ids])[0] if line.strip() else ""
        for line, row in zip(LINES, rows, strict=True)
    ]
    assert len(set(expected)) > 4
    assert [not text for text in expected] == [not line.strip() for line in LINES]
    for batch_tokens in (1, 25, 10_000):
        assert translate(translator, vocabulary, LINES, QUICK, batch_tokens=batch_tokens) == expected
    assert translate(translator, vocabulary, LINES[::-1], QUICK, batch_tokens=25) == expected[::-1]


def test_progress_counts_every_line_once(translator, vocabulary):
    done = []
    translate(translator, vocabulary, LINES, Search(1, 0.6, 0), batch_tokens=10, progress=done.append)
    assert sum(done) == len(LINES)
    assert len(done) > 3


def test_empty_lines_stay_empty(translator, vocabulary):
    assert translate(translator, vocabulary, [], QUICK) == []
    assert translate(translator, vocabulary, ["", " ", "\t", "\u2003 \u3000", "\r\n"], QUICK) == [""] * 5


def test_a_line_too_long_is_refused_before_any_is_translated(translator, vocabulary, monkeypatch):
    def refuse(*_):
        raise AssertionError("translated")

    lines, done = ["cat", "", "a dog " * 30, "mat"], []
    with monkeypatch.context() as patch:
        patch.setattr(translator, "encode", refuse)
        with pytest.raises(ValueError, match=r"line 3: must have at most 12 tokens, got \d\d"):
            translate(translator, vocabulary, lines, QUICK, longest=12, progress=done.append)
        # as many tokens as are allowed get as far as the model
        allowed = len(vocabulary.encode(["a dog"])[0])
        with pytest.raises(AssertionError, match="translated"):
            translate(translator, vocabulary, ["a dog"], QUICK, longest=allowed)
        with pytest.raises(ValueError, match=f"line 1: must have at most {allowed - 1} tokens, got {allowed}"):
            translate(translator, vocabulary, ["a dog"], QUICK, longest=allowed - 1)
    assert done == []


def test_a_long_line_is_translated(vocabulary):
    model, line = _sharp(5, len(vocabulary)), "z" * 400
    assert len(vocabulary.encode([line])[0]) > 390
    short = translate(model, vocabulary, ["a cat"], QUICK)
    both = translate(model, vocabulary, [line, "a cat"], QUICK)
    assert both[1:] == short
    assert both[0]
    assert both[:1] == translate(model, vocabulary, [line], replace(QUICK, cached=True), batch_tokens=1)


@pytest.mark.parametrize(
    "line",
    [
        "你好,世界",
        "👩‍👩‍👧 🏳️‍🌈",
        "\x00",
        "\x1b[31m",
        "e\u0301\u0327",
        "</s>",
        "<pad>",
        "<s>",
        "a\u2028b",
        "a\tb",
        "\ufeff",
    ],
)
def test_any_character_is_translated(translator, vocabulary, line):
    found = translate(translator, vocabulary, [line, "a cat"], QUICK)
    assert found[1:] == translate(translator, vocabulary, ["a cat"], QUICK)
    assert len(found[0].splitlines()) <= 1
    ids = vocabulary.encode([line])[0]
    assert ids
    expected = search(translator, torch.tensor([[*ids, END]]), QUICK)[0]
    assert [found[0]] == vocabulary.decode([expected.ids])


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_evaluated_and_left_in_its_mode(vocabulary, training):
    model = _sharp(2, len(vocabulary), dropout=0.9)
    expected = translate(model, vocabulary, LINES, QUICK)
    model.train(training)
    assert translate(model, vocabulary, LINES, QUICK) == expected
    assert model.training is training


def _loss_of(model, source, target, smoothing):
    with torch.no_grad():
        memory, padding = model.encode(source)
        logits = model.decode(target[:, :-1], memory, padding)
    return functional.cross_entropy(
        logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=smoothing, reduction="sum"
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_the_loss_is_cross_entropy_with_smoothing(smoothing):
    model = _sharp(0, 11)
    source = _padded(_sources(0, 11, [4, 2, 6]))
    target = _padded([[START, *row] for row in _sources(1, 11, [3, 5, 1])])
    loss, nll = model(source, target, smoothing)
    assert loss.item() == pytest.approx(_loss_of(model, source, target, smoothing).item(), rel=1e-6)
    assert nll.item() == pytest.approx(_loss_of(model, source, target, 0.0).item(), rel=1e-6)
    assert loss.requires_grad
    assert not nll.requires_grad


def test_one_matrix_embeds_and_scores():
    model = _sharp(0, 13)
    assert [name for name, value in model.state_dict().items() if 13 in value.shape] == ["embedding.weight"]
    memory, padding = model.encode(torch.tensor([[3, END]]))
    before = model.decode(torch.tensor([[START, 4]]), memory, padding)
    with torch.no_grad():
        model.embedding.weight[7] *= 3
    # 7 was never given, so that its row is only the output's
    scale = torch.ones(13, dtype=torch.double)
    scale[7] = 3
    torch.testing.assert_close(model.decode(torch.tensor([[START, 4]]), memory, padding), before * scale)
    with torch.no_grad():
        model.embedding.weight[4] *= 3
    after = model.decode(torch.tensor([[START, 4]]), memory, padding)
    torch.testing.assert_close(after[:, 0, :4], before[:, 0, :4])
    assert not torch.allclose(after[:, 1, :4], before[:, 1, :4])


@pytest.mark.parametrize("positions", ["relative", "both"])
@pytest.mark.parametrize(("key", "value"), [(True, True), (True, False), (False, True), (False, False)])
def test_tables_are_left_out_as_told(positions, key, value):
    def names(**settings):
        return {name for name, _ in Translator(replace(TINY, **settings), 6).named_parameters()}

    kinds = [name for name, on in (("key", key), ("value", value)) if on]
    tables = {
        f"transformer.{side}.layers.{layer}.self_attn.tables.{kind}.rows"
        for side, layer, kind in itertools.product(("encoder", "decoder"), range(2), kinds)
    }
    assert names(positions=positions, key_table=key, value_table=value) == names(positions="none") | tables
    assert not names(positions="none") & tables


@pytest.mark.parametrize("positions", POSITIONS)
def test_more_padding_changes_nothing(positions):
    model = _sharp(0, 9, positions=positions)
    source, target = _padded(_sources(0, 9, [4, 2, 6])), _padded([[START, *row] for row in _sources(1, 9, [3, 5, 1])])
    wider = functional.pad(source, (0, 5), value=PAD), functional.pad(target, (0, 3), value=PAD)
    for a, b in zip(model(source, target, 0.1), model(*wider, 0.1), strict=True):
        assert a.item() == pytest.approx(b.item(), rel=1e-6)
    with torch.no_grad():
        narrow = model.decode(target[:, :-1], *model.encode(source))
        wide = model.decode(wider[1][:, :-1], *model.encode(wider[0]))
    torch.testing.assert_close(wide[:, : narrow.shape[1]], narrow, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("inference", [True, False])
def test_decoding_step_by_step_is_decoding_at_once(positions, inference):
    model = _sharp(0, 9, positions=positions)
    source, target = _padded(_sources(0, 9, [4, 2, 6])), torch.randint(SPECIAL, 9, (3, 7))
    with torch.inference_mode(inference):
        memory, padding = model.encode(source)
        whole = model.decode(target, memory, padding)
        cache = model.transformer.new_cache()
        parts = [model.decode(part, memory, padding, cache) for part in target.split([1, 1, 3, 1, 1], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-10, rtol=1e-10)


PAIRS = [("the cat", "die Katze"), ("a dog sat", "ein Hund saß"), ("mat", "Matte"), ("on and on", "weiter und weiter")]


def test_likelihood_is_that_of_one_sentence_after_another(translator, vocabulary):
    expected, tokens = 0.0, 0
    for source, target in PAIRS:
        (given,), (wanted,) = vocabulary.encode([source]), vocabulary.encode([target])
        expected -= _log_likelihoods(translator, [*given, END], [wanted])[0]
        tokens += len(wanted) + 1
    encoded = Pairs.encode(PAIRS, vocabulary)
    for batch_tokens in (1, 30, 10_000):
        found = _likelihood(translator, encoded, batch_tokens)
        assert found == (pytest.approx(expected, rel=1e-6), tokens)


def _likelihood(model, pairs, batch_tokens=4096):
    return evaluation.negative_log_likelihood(model, pairs, pairs.batches(batch_tokens, 1000, None))


def test_likelihood_of_nothing_is_nothing(translator, vocabulary):
    assert _likelihood(translator, Pairs.encode([], vocabulary)) == (0.0, 0)


def test_measures_are_those_of_sacrebleu(translator, vocabulary, monkeypatch):
    monkeypatch.setattr(evaluation, "translate", lambda *_, **__: ["die Katze saß", "ein Hund saß", "Matte.", "und"])
    result, found = evaluation.evaluate(translator, vocabulary, PAIRS, QUICK)
    references = [[target for _, target in PAIRS]]
    assert found == ["die Katze saß", "ein Hund saß", "Matte.", "und"]
    assert result["bleu"] == sacrebleu.corpus_bleu(found, references).score
    assert result["chrf"] == sacrebleu.corpus_chrf(found, references).score
    assert 0 < result["chrf"] < 100
    assert "tok:13a" in result["signature"].split("|")
    assert result["chrf_signature"].startswith("nrefs:1|case:mixed")
    assert result["sentences"] == 4
    total, tokens = _likelihood(translator, Pairs.encode(PAIRS, vocabulary))
    assert result["tokens"] == tokens
    assert result["nll"] == pytest.approx(total / tokens, rel=1e-12)
    assert result["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-12)


def test_evaluation_translates_the_sources(translator, vocabulary):
    done = []
    result, found = evaluation.evaluate(translator, vocabulary, PAIRS, QUICK, done.append)
    assert found == translate(translator, vocabulary, [source for source, _ in PAIRS], QUICK)
    assert result["bleu"] == sacrebleu.corpus_bleu(found, [[target for _, target in PAIRS]]).score
    assert sum(done) == len(PAIRS)


def test_perfect_translations_score_a_hundred(translator, vocabulary, monkeypatch):
    targets = ["eins zwei drei vier fünf"] * len(PAIRS)
    monkeypatch.setattr(evaluation, "translate", lambda *_, **__: targets)
    pairs = [(source, target) for (source, _), target in zip(PAIRS, targets, strict=True)]
    result, _ = evaluation.evaluate(translator, vocabulary, pairs, QUICK)
    assert result["bleu"] == pytest.approx(100)
    assert result["chrf"] == pytest.approx(100)


def test_an_empty_test_is_refused(translator, vocabulary):
    with pytest.raises(ValueError, match=r"a test set must have at least one pair, got none"):
        evaluation.evaluate(translator, vocabulary, [], QUICK)
