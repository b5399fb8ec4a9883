"""Stacks: labels made once, tables of each layer or shared, caches of all layers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import relgraph as rg
from relgraph.labelers import ClippedDistance
from relgraph.labels import DenseLabels, SumLabels
from relgraph.nn import (
    KVCache,
    RelationDecoder,
    RelationDecoderLayer,
    RelationEncoder,
    RelationEncoderLayer,
    RelationTables,
    StackCache,
)
from tests.layers import decoder_layer, encoder_layer

from .helpers import F64, close, fill_tables


class Counting:
    """A labeler that counts how often it is asked."""

    def __init__(self):
        self.inner, self.calls = ClippedDistance(2), 0
        self.num_labels, self.names = self.inner.num_labels, self.inner.names

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.inner(*args, **kwargs)


LABELER = ClippedDistance(2)


def test_a_graph_is_read_by_the_labeler():
    graph = rg.Graph(torch.tensor([[0, 1, 3], [1, 2, 4]]), 5, ptr=torch.tensor([0, 3, 5]))
    labeler, x = rg.EdgeType(1, self_loop=True), torch.randn(5, 12, dtype=F64)
    layer = encoder_layer(12, 3, 20, labeler=labeler, dtype=F64).eval()
    stack = RelationEncoder(layer, 2).eval()
    close(layer(x, labels=graph), layer(x, labels=labeler(graph)))
    close(stack(x, labels=graph), stack(x, labels=labeler(graph)))
    with pytest.raises(TypeError, match="labels must be Labels, an integer Tensor or None, got Graph"):
        encoder_layer(12, 3, 20, dtype=F64)(x, labels=graph)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_copies_draw_their_own_parameters_by_default(kind):
    make = {"encoder": (RelationEncoderLayer, RelationEncoder), "decoder": (RelationDecoderLayer, RelationDecoder)}
    layer, stack = make[kind]
    one = layer(12, 3, 20, labeler=LABELER)
    trained = stack(one, 2, fresh=False)
    for copied in trained.layers:
        assert all(torch.equal(a, b) for a, b in zip(copied.parameters(), one.parameters(), strict=True))
    made = stack(one, 2, nn.LayerNorm(12))
    first, second = (list(one.parameters()) for one in made.layers)
    matrices = [(a, b) for a, b in zip(first, second, strict=True) if a.dim() > 1]
    assert matrices
    assert not any(torch.equal(a, b) for a, b in matrices)


def encoder(num_layers=3, **options):
    torch.manual_seed(0)
    layer = encoder_layer(12, 3, 20, dtype=F64, **{"labeler": LABELER, **options})
    return fill_tables(RelationEncoder(layer, num_layers, nn.LayerNorm(12, dtype=F64))).eval()


def decoder(num_layers=3, **options):
    torch.manual_seed(0)
    layer = decoder_layer(12, 3, 20, dtype=F64, **{"labeler": LABELER, **options})
    return fill_tables(RelationDecoder(layer, num_layers, nn.LayerNorm(12, dtype=F64))).eval()


def test_layer_after_layer():
    stack, x = encoder(), torch.randn(2, 6, 12, dtype=F64)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    wanted = x
    for layer in stack.layers:
        wanted = layer(wanted, None, padding, True)
    close(stack(x, None, padding, True), stack.norm(wanted))
    stack, memory = decoder(), torch.randn(2, 4, 12, dtype=F64)
    wanted = x
    for layer in stack.layers:
        wanted = layer(wanted, memory, tgt_is_causal=True)
    close(stack(x, memory, tgt_is_causal=True), stack.norm(wanted))


def test_labels_are_made_once():
    labeler, x = Counting(), torch.randn(2, 6, 12, dtype=F64)
    stack = encoder(labeler=labeler)
    for layer in stack.layers:
        layer.self_attn.labeler = labeler  # each copy has a copy
    stack(x)
    assert labeler.calls == 1
    close(stack(x, labels=LABELER(6)), stack(x))
    assert labeler.calls == 2


def test_tables_that_were_given_are_shared():
    tables = RelationTables(5, 4, dtype=F64)
    for stack in (encoder(tables=tables), decoder(tables=tables)):
        assert all(layer.self_attn.tables is tables for layer in stack.layers)
        assert sum(name.endswith("rows") for name, _ in stack.named_parameters()) == 2
        assert len({id(layer.self_attn.tables) for layer in copy.deepcopy(stack).layers}) == 1
        assert len({id(layer.linear1) for layer in stack.layers}) == 3


@pytest.mark.parametrize("shared", [False, True])
def test_an_attention_is_copied_and_its_tables_unless_shared(shared):
    tables = RelationTables(LABELER, 4, 3, per_head=True, shared=shared)
    attention = rg.RelationAttention(12, 3, labeler=LABELER, tables=tables, score=rg.score.Softcap(3.0))
    stack = RelationEncoder(RelationEncoderLayer(12, 3, 20, attention=attention), 2)
    first, second = (layer.self_attn for layer in stack.layers)
    assert first is not attention and not torch.equal(first.in_proj_weight, second.in_proj_weight)
    assert (first.tables is second.tables) is (first.tables is tables) is shared
    assert torch.equal(first.tables.key.rows, second.tables.key.rows) is shared
    before = first.tables.key.rows.detach().clone()
    stack.reset_parameters()
    assert torch.equal(first.tables.key.rows, before) is shared


class TestCaches:
    def test_decoder_step_by_step_with_beams(self):
        stack, memory = decoder(), torch.randn(2, 4, 12, dtype=F64)
        tgt, index = torch.randn(2, 3, 12, dtype=F64), torch.tensor([1, 0, 1])
        cache = stack.new_cache()
        with torch.no_grad():
            for row in range(3):
                stack(tgt[:, row : row + 1], memory, tgt_is_causal=True, cache=cache)
            cache.reorder(index)
            step = torch.randn(3, 1, 12, dtype=F64)
            got = stack(step, None, tgt_is_causal=True, cache=cache)
            whole = torch.cat([tgt[index], step], 1)
            wanted = stack(whole, memory[index], tgt_is_causal=True)
        close(got, wanted[:, 3:])

    def test_labels_of_the_whole_are_cut_once_for_all_layers(self, monkeypatch):
        tgt, memory = torch.randn(2, 5, 12, dtype=F64), torch.randn(2, 4, 12, dtype=F64)
        stack = decoder(labeler=None, num_labels=(5, 3), num_memory_labels=3)
        labels = SumLabels(LABELER(5), DenseLabels(torch.randint(0, 3, (2, 5, 5)), 3))
        towards = DenseLabels(torch.randint(0, 3, (2, 5, 4)), 3)
        options = {"labels": labels, "memory_labels": towards, "tgt_is_causal": True}
        wanted, cache, calls, rows = stack(tgt, memory, **options), stack.new_cache(), [], DenseLabels.rows
        monkeypatch.setattr(DenseLabels, "rows", lambda *given: calls.append(given[0].k_len) or rows(*given))
        pieces = [stack(tgt[:, row : row + 1], memory, cache=cache, **options) for row in range(5)]
        close(torch.cat(pieces, 1), wanted)
        assert calls == [5, 4] * 5

    def test_caches_that_do_not_fit(self):
        stack, x = encoder(2), torch.randn(2, 3, 12, dtype=F64)
        with pytest.raises(TypeError, match="cache must be a StackCache or None, got KVCache"):
            stack(x, cache=KVCache())
        with pytest.raises(ValueError, match="one KVCache for each of the 2 layers, got StackCache"):
            stack(x, cache=StackCache(KVCache()))
        with pytest.raises(ValueError, match="one KVCache for each of the 2 layers, got StackCache"):
            stack(x, cache=decoder(2).new_cache())
        with pytest.raises(ValueError, match="one LayerCache for each of the 2 layers"):
            decoder(2)(x, x, cache=stack.new_cache())


def test_a_labeler_gets_what_it_reads():
    """Speakers ``[B, N]`` with B = N have the shape of ids ``[N, N]``, and go to the labeler."""
    labeler, x = rg.Segments(4), torch.randn(5, 5, 12)
    speakers = torch.randint(0, 4, (5, 5))
    encoder, decoder = (
        kind(12, 3, 20, labeler=labeler).eval() for kind in (RelationEncoderLayer, RelationDecoderLayer)
    )
    message = r"labels must be Labels, or what Segments\(4\) reads, got list: .* \(segments must be"
    for layer in (encoder, RelationEncoder(encoder, 2), decoder, RelationDecoder(decoder, 2)):
        memory = () if isinstance(layer, (RelationEncoderLayer, RelationEncoder)) else (x,)
        wanted = layer(x, *memory, labels=labeler(speakers))
        assert torch.equal(layer(x, *memory, labels=speakers), wanted)
        with pytest.raises(TypeError, match=message):
            layer(x, *memory, labels=speakers.tolist())
        with pytest.raises(
            TypeError, match=r"labels must be given, as the labeler Segments\(.*\) does not label lengths"
        ):
            layer(x, *memory)
