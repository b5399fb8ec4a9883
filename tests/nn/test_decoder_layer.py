"""The decoder layer: torch's own with zero tables, relations on both sides, and the cache."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import relgraph as rg
from relgraph.labelers import ClippedDistance
from relgraph.labels import DenseLabels
from relgraph.nn import LayerCache, RelationDecoderLayer, RelationTables
from tests.layers import decoder_layer

from .helpers import F64, by_hand, close, fill_tables, some_edges, zero_tables

LABELER = ClippedDistance(2)


def make(**options):
    torch.manual_seed(0)
    return fill_tables(decoder_layer(12, 3, 20, dtype=F64, **{"labeler": LABELER, **options})).eval()


def plain_layer(**options):
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(12, 3, 20, batch_first=True, dtype=F64, **options).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


def inputs(batch=2, tgt=5, memory=7):
    return torch.randn(batch, tgt, 12, dtype=F64), torch.randn(batch, memory, 12, dtype=F64)


class TestAgainstTorch:
    @pytest.mark.parametrize("norm_first", [False, True])
    @pytest.mark.parametrize("options", [{}, {"activation": "gelu"}, {"bias": False}])
    @pytest.mark.parametrize("tables", [{"tables": ()}, {"labeler": LABELER}])
    def test_the_same_values(self, norm_first, options, tables):
        plain = plain_layer(norm_first=norm_first, layer_norm_eps=1e-3, **options)
        ours = zero_tables(RelationDecoderLayer.from_plain(plain, **tables))
        tgt, memory = inputs()
        causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=F64)
        padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
        blocked = torch.rand(5, 7) > 0.7
        close(ours(tgt, memory, tgt_is_causal=False), plain(tgt, memory))
        close(ours(tgt[0], memory[0], tgt_is_causal=False), plain(tgt[0], memory[0]))
        close(ours(tgt, memory), plain(tgt, memory, causal, tgt_is_causal=True))
        arguments = (tgt, memory, causal, blocked, torch.zeros(2, 5, dtype=F64), padding)
        close(ours(*arguments), plain(*arguments[:3], *arguments[3:]))

    def test_causal_towards_the_memory(self):
        plain = plain_layer()
        ours = RelationDecoderLayer.from_plain(plain, tables=())
        tgt, memory = inputs()
        mask = torch.ones(5, 7, dtype=torch.bool).triu(1)
        close(ours(tgt, memory, tgt_is_causal=False, memory_is_causal=True), plain(tgt, memory, memory_mask=mask))

    def test_the_future_is_hidden_unless_asked_for(self):
        layer, (tgt, memory) = make(), inputs()
        past = torch.ones(5, 5, dtype=torch.bool).triu(1)
        close(layer(tgt, memory), layer(tgt, memory, past, tgt_is_causal=False))
        close(layer(tgt, memory, past), layer(tgt, memory))
        for mask in (
            torch.zeros(5, 5, dtype=torch.bool),
            past[None].expand(6, 5, 5).clone().index_fill(0, torch.tensor(1), False),
        ):
            with pytest.raises(ValueError, match="tgt_mask must block all later rows .* pass tgt_is_causal=False"):
                layer(tgt, memory, mask)
        close(layer(tgt, memory, torch.zeros(5, 5)), layer(tgt, memory))  # floats are added


class TestLabels:
    def test_the_labeler_of_the_attention_to_the_memory(self):
        cross = rg.RelationAttention(12, 3, labeler=LABELER, dtype=F64)
        layer = fill_tables(RelationDecoderLayer(12, 3, 20, labeler=LABELER, cross_attention=cross)).eval()
        tgt, memory, cache = torch.randn(2, 5, 12, dtype=F64), torch.randn(2, 7, 12, dtype=F64), LayerCache()
        wanted = layer(tgt, memory, memory_labels=LABELER(5, 7, q_offset=0))
        close(layer(tgt, memory), wanted)
        steps = [layer(tgt[:, i : i + 1], memory, cache=cache) for i in range(5)]
        close(torch.cat(steps, 1), wanted)

    def test_written_out(self):
        layer, (tgt, memory) = make(num_memory_labels=4, memory_tables=("key", "bias")), inputs()
        towards = DenseLabels(torch.randint(-1, 4, (2, 5, 7)), 4)
        x = layer.norm1(tgt + by_hand(layer.self_attn, tgt, labels=LABELER(5), is_causal=True))
        x = layer.norm2(x + by_hand(layer.multihead_attn, x, memory, labels=towards))
        wanted = layer.norm3(x + layer.linear2(functional.relu(layer.linear1(x))))
        close(layer(tgt, memory, tgt_is_causal=True, memory_labels=towards), wanted)
        close(layer(tgt, memory, tgt_is_causal=True, labels=LABELER(5), memory_labels=towards), wanted)

    def test_packed(self):
        layer, ((tgt,), (memory,)) = make(num_memory_labels=5), inputs(1)
        q_ptr, ptr = torch.tensor([0, 2, 5]), torch.tensor([0, 3, 7])
        towards = LABELER(5, 7, ptr=ptr, q_ptr=q_ptr)
        z = layer(tgt, memory, labels=LABELER(5, ptr=q_ptr), memory_labels=towards)
        first = layer(tgt[:2], memory[:3], memory_labels=LABELER(2, 3))
        second = layer(tgt[2:], memory[3:], memory_labels=LABELER(3, 4))
        close(z, torch.cat([first, second]))

    def test_packed_memory_of_a_padded_target(self):
        layer, (tgt, (memory, _)) = make(num_memory_labels=5), inputs()
        ptr, q_ptr = torch.tensor([0, 3, 7]), torch.tensor([0, 5, 10])
        towards = LABELER(10, 7, ptr=ptr, q_ptr=q_ptr)
        hidden = torch.tensor([False, True, False, False, True, False, False])
        blocked = torch.rand(10, 7) < 0.2
        options = {"tgt_is_causal": True, "memory_is_causal": True}
        masks = {"memory_key_padding_mask": hidden, "memory_mask": blocked}
        z = layer(tgt, memory, memory_labels=towards, **options, **masks)
        for row, keys in enumerate((slice(0, 3), slice(3, 7))):
            own = {"memory_key_padding_mask": hidden[keys], "memory_mask": blocked[5 * row : 5 * row + 5, keys]}
            labels = LABELER(5, keys.stop - keys.start, q_offset=0)
            close(z[row], layer(tgt[row], memory[keys], memory_labels=labels, **options, **own))
        with pytest.raises(ValueError, match=r"^memory_labels must cover \[N_q, N_k\] = \[10, 7\], got \[5, 7\]"):
            layer(tgt, memory, memory_labels=LABELER(5, 7, ptr=ptr, q_ptr=torch.tensor([0, 2, 5])))
        with pytest.raises(ValueError, match=r"^memory must have shape \[T, E\], as the memory_labels are packed"):
            layer(tgt, memory[None].expand(2, 7, 12), memory_labels=towards)

    def test_tables_tied_to_the_memorys(self):
        tables = RelationTables(5, 4, dtype=F64)
        layer = make(tables=tables, memory_tables=tables)
        assert layer.self_attn.tables is layer.multihead_attn.tables
        assert sum(name.endswith("rows") for name, _ in layer.named_parameters()) == 2


class TestCache:
    @pytest.mark.parametrize("again", [False, True])
    @pytest.mark.parametrize("causal", [False, True])
    def test_piece_by_piece(self, again, causal):
        layer, (tgt, memory) = make(), inputs()
        padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
        own = torch.tensor([[False] * 5, [True] * 2 + [False] * 3])
        options = {"tgt_is_causal": True, "memory_is_causal": causal}
        wanted = layer(tgt, memory, None, None, own, padding, **options)
        cache, pieces = LayerCache(), []
        for start, stop in ((0, 2), (2, 3), (3, 5)):
            given = (memory, padding) if again or not start else (None, None)
            mask = own[:, start:stop]
            pieces.append(layer(tgt[:, start:stop], given[0], None, None, mask, given[1], cache=cache, **options))
        close(torch.cat(pieces, 1), wanted)
        assert len(cache) == 5
        assert len(cache.multihead_attn) == 7

    def test_labels_of_the_whole_target(self):
        layer, (tgt, memory) = make(num_memory_labels=5), inputs()
        labels, towards, cache = some_edges(5, 5, 4), some_edges(7, 5, 4).rows(0, 5), LayerCache()
        options = {"labels": labels, "memory_labels": towards, "tgt_is_causal": True}
        wanted = layer(tgt, memory, **options)
        for start, stop in ((0, 2), (2, 3), (3, 5)):
            close(layer(tgt[:, start:stop], memory, cache=cache, **options), wanted[:, start:stop])
        with pytest.raises(ValueError, match=r"labels must cover \[N_q, N_k\] = \[1, 6\], got \[5, 5\]"):
            layer(tgt[:, :1], memory, cache=cache, **options)
        with pytest.raises(ValueError, match=r"memory_labels must cover \[N_q, N_k\] = \[1, 7\], got \[5, 7\]"):
            layer(tgt[:, :1], memory, cache=cache, **{**options, "labels": LABELER(6)})
