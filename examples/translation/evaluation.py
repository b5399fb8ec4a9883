"""Measures a translator: perplexity of given translations, and BLEU and chrF of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor

from examples.translation.batches import Pairs
from examples.translation.bootstrap import sentence_statistics
from examples.translation.corpus import Pair
from examples.translation.model import Translator
from examples.translation.search import Search, translate
from examples.translation.vocabulary import Vocabulary

BATCH_TOKENS = 4096


@torch.no_grad()
def negative_log_likelihood(model: Translator, pairs: Pairs, parts: Iterable[Tensor]) -> tuple[float, int]:
    """The sum over all target tokens including ends, and their number, with the model in evaluation mode.

    Args:
        model: on its device and in the caller's precision.
        pairs: pairs with their given translations.
        parts: the batches from ``pairs.batches``.
    """
    device, total, tokens = model.embedding.weight.device, 0.0, 0
    for index in parts:
        batch = pairs.batch(index).to(device)
        total += float(model(batch.source, batch.given, batch.wanted)[1])
        tokens += batch.tokens
    return total, tokens


def evaluate(
    model: Translator, vocabulary: Vocabulary, pairs: Sequence[Pair], how: Search
) -> tuple[dict[str, Any], Tensor, list[str]]:
    """The measures of a test set, what BLEU sums over its sentences, and the model's translations.

    Perplexity is per subword, so only models with the same vocabulary compare.
    """
    encoded = Pairs.encode(pairs, vocabulary)
    total, tokens = negative_log_likelihood(model, encoded, encoded.batches(BATCH_TOKENS))
    references = [target for _, target in pairs]
    found = translate(model, vocabulary, [source for source, _ in pairs], how)
    bleu = BLEU()
    result = {
        "sentences": len(pairs),
        "tokens": tokens,
        "nll": total / tokens,
        "perplexity": math.exp(min(total / tokens, 700.0)),
        "bleu": bleu.corpus_score(found, [references]).score,
        "chrf": CHRF().corpus_score(found, [references]).score,
        "signature": str(bleu.get_signature()),
    }
    return result, sentence_statistics(found, references), found
