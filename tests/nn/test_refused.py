"""A call that is refused leaves its cache as it was: corrected and repeated it gives what one pass gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relgraph.labelers import ClippedDistance
from relgraph.labels import DenseLabels
from relgraph.nn import (
    KVCache,
    LayerCache,
    RelationAttention,
    RelationDecoder,
    RelationEncoder,
)
from tests.layers import decoder_layer, encoder_layer, transformer

from .helpers import F64, close, fill_tables

LABELER = ClippedDistance(2)
RANDOM = torch.Generator().manual_seed(0)
X, MEMORY = (torch.randn(2, length, 12, dtype=F64, generator=RANDOM) for length in (5, 7))


class Failing(nn.Module):
    """An identity that fails once after ``armed`` is set."""

    armed = False

    def forward(self, x):
        if self.armed:
            self.armed = False
            raise RuntimeError("out of memory")
        return x


def contents(cache):
    """Copy all tensors and lengths of a cache of any kind."""
    if isinstance(cache, KVCache):
        return [len(cache), *(None if x is None else x.clone() for x in (cache.key, cache.value, cache.padding))]
    return [contents(part) for part in (cache if not isinstance(cache, LayerCache) else vars(cache).values())]


def assert_undone(run, cache, refused, error, match, *, grad):
    """Check that ``run`` in two pieces, the second refused at first, equals ``run`` over all rows."""
    with torch.set_grad_enabled(grad):
        wanted, first = run(slice(0, 5)), run(slice(0, 3), cache=cache)
        before = contents(cache)
        with pytest.raises(error, match=match):
            run(slice(3, 5), **{"cache": cache, **refused})
        close(contents(cache), before, atol=0.0)
        close(torch.cat([first, run(slice(3, 5), cache=cache)], 1), wanted)


@pytest.mark.parametrize(("max_len", "grad"), [(None, True), (8, False)])
@pytest.mark.parametrize(
    ("refused", "error", "match"),
    [
        ({"is_causal": 1}, TypeError, "is_causal must be a bool, got int"),
        (
            {"labels": DenseLabels(torch.zeros(2, 5, dtype=torch.long), 5).to("meta")},
            ValueError,
            "labels must .* got meta",
        ),
        ({"need_weights": None}, TypeError, "need_weights must be a bool"),
    ],
)
def test_attention(refused, error, match, max_len, grad):
    torch.manual_seed(0)
    layer = fill_tables(RelationAttention(12, 3, num_labels=5, dtype=F64))

    def run(rows, **options):
        labels = LABELER(rows.stop - rows.start, rows.stop, q_offset=rows.start)
        return layer(X[:, rows], **{"labels": labels, "is_causal": True, **options})

    assert_undone(run, KVCache(max_len), refused, error, match, grad=grad)


@pytest.mark.parametrize(("depth", "grad"), [(1, True), (2, False)])
def test_what_fails_after_the_attention(depth, grad):
    torch.manual_seed(0)
    layer = fill_tables(encoder_layer(12, 3, 20, labeler=LABELER, dtype=F64)).eval()
    module = layer if depth == 1 else RelationEncoder(layer, depth)
    cache = KVCache() if depth == 1 else module.new_cache(8)
    last = layer if depth == 1 else module.layers[-1]
    failing = last.activation = Failing()

    def run(rows, fail=False, **options):
        failing.armed = fail
        return module(X[:, rows], is_causal=True, **options)

    assert_undone(run, cache, {"fail": True}, RuntimeError, "out of memory", grad=grad)


REFUSED = [
    ({"memory_mask": torch.zeros(3, 3, dtype=torch.bool)}, ValueError, "^memory_mask must have shape"),
    ({"memory": MEMORY[..., :8]}, ValueError, "^memory must end in d_model = 12"),
    ({"tgt_is_causal": 1}, TypeError, "^tgt_is_causal must be a bool, got int"),
    ({"memory_is_causal": 1}, TypeError, "^memory_is_causal must be a bool, got int"),
]


@pytest.mark.parametrize(("refused", "error", "match"), REFUSED)
@pytest.mark.parametrize(("kind", "grad"), [("layer", True), ("stack", False), ("model", False)])
def test_decoders(kind, refused, error, match, grad):
    torch.manual_seed(0)
    layer = decoder_layer(12, 3, 20, labeler=LABELER, dtype=F64)
    module, cache = layer, LayerCache()
    if kind == "stack":
        module = RelationDecoder(layer, 2)
        cache = module.new_cache()
    elif kind == "model":
        module = transformer(12, 3, 2, 2, 20, positions="sinusoidal", dtype=F64)
        cache = module.new_cache(8)
    call = module.eval().decode if kind == "model" else module.eval()

    def run(rows, **options):
        return call(X[:, rows], **{"memory": MEMORY, "tgt_is_causal": True, **options})

    assert_undone(run, cache, refused, error, match, grad=grad)
    cache.reset()
    with pytest.raises(error, match=match):
        run(slice(0, 2), cache=cache, **refused)
    assert str(contents(cache)).count("0, None, None, None") == (2 if kind == "layer" else 4)
