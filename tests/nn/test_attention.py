"""The multi-head layer: torch's own without tables, the reference with them, and all that a module must survive."""

from __future__ import annotations

import copy
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import relgraph as rg
from relgraph.functional.choice import choice_of
from relgraph.labelers import ClippedDistance, Window
from relgraph.labels import BlockLabels, DenseLabels
from relgraph.nn import RelationTables, attention
from tests.layers import attention_layer

from .helpers import F64, by_hand, close, fill_tables, some_edges, table_keys, zero_tables

LABELER = ClippedDistance(2)
KINDS = ("key", "value", "query", "bias")


def make(embed_dim=12, num_heads=3, *, num_labels=5, seed=0, **options):
    torch.manual_seed(seed)
    layer = attention_layer(embed_dim, num_heads, num_labels=num_labels, dtype=F64, **options)
    nn.init.normal_(layer.in_proj_bias) if layer.in_proj_bias is not None else None
    return fill_tables(layer)


def pair(*, zero_labels=None, **options):
    """Make torch's layer, and ours with its state."""
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(12, 3, batch_first=True, dtype=F64, **options)
    if plain.in_proj_bias is not None:
        nn.init.normal_(plain.in_proj_bias)
    ours = attention_layer(12, 3, num_labels=zero_labels, dtype=F64, **options)
    found = ours.load_state_dict(plain.state_dict(), strict=zero_labels is None)
    assert zero_labels is None or table_keys(found.missing_keys)
    return plain, zero_tables(ours)


class TestAgainstTorch:
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("zero_labels", [None, 5])
    def test_self_attention(self, zero_labels, bias):
        plain, ours = pair(zero_labels=zero_labels, bias=bias)
        x = torch.randn(2, 7, 12, dtype=F64)
        labels = None if zero_labels is None else LABELER(7)
        wanted, weights = plain(x, x, x, average_attn_weights=False)
        close(ours(x, labels=labels), wanted)
        got = ours(x, x, x, labels=labels, need_weights=True)
        close(got[0], wanted)
        close(got[1], weights)
        close(ours(x[0], labels=labels), wanted[0])
        close(ours(x[0], labels=labels, need_weights=True)[1], weights[0])

    @pytest.mark.parametrize(
        ("form", "dtype", "padded"),
        [("pairs", torch.bool, True), ("pairs", F64, False), ("heads", torch.bool, False), ("heads", F64, True)],
    )
    def test_masks(self, form, dtype, padded):
        plain, ours = pair()
        x = torch.randn(2, 6, 12, dtype=F64)
        shape = (6, 6) if form == "pairs" else (6, 6, 6)
        mask = torch.rand(shape) > 0.6 if dtype == torch.bool else torch.randn(shape, dtype=F64)
        if dtype == torch.bool:
            mask[..., 0] = False
        padding = torch.tensor([[False] * 6, [False] * 3 + [True] * 3]) if padded else None
        if padded and dtype == F64:
            padding = torch.zeros(2, 6, dtype=F64).masked_fill(padding, float("-inf"))
        wanted = plain(x, x, x, attn_mask=mask, key_padding_mask=padding)[0]
        close(ours(x, attn_mask=mask, key_padding_mask=padding), wanted)
        if form != "pairs":
            close(ours(x, attn_mask=mask.view(2, 3, 6, 6), key_padding_mask=padding), wanted)

    @pytest.mark.parametrize("widths", [{}, {"kdim": 5, "vdim": 7}])
    def test_equal_seeds_make_equal_parameters(self, widths):
        torch.manual_seed(3)
        plain = nn.MultiheadAttention(12, 3, batch_first=True, **widths)
        torch.manual_seed(3)
        ours = attention_layer(12, 3, num_labels=5, **widths)
        state = ours.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in plain.state_dict().items())


FORGETFUL = {
    "attention": lambda **options: (rg.RelationAttention(12, 3, **options), nn.MultiheadAttention(12, 3)),
    "encoder layer": lambda **options: (
        rg.RelationEncoderLayer(12, 3, 16, **options),
        nn.TransformerEncoderLayer(12, 3, 16),
    ),
    "decoder layer": lambda **options: (
        rg.RelationDecoderLayer(12, 3, 16, **options),
        nn.TransformerDecoderLayer(12, 3, 16),
    ),
    "attention from torch's": lambda **options: (
        rg.RelationAttention.from_plain(nn.MultiheadAttention(12, 3, batch_first=True), **options),
        nn.MultiheadAttention(12, 3),
    ),
    "stack from torch's": lambda **options: (
        rg.RelationEncoder.from_plain(
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(12, 3, 16, batch_first=True), 2, enable_nested_tensor=False
            ),
            **options,
        ),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3, 16), 2, enable_nested_tensor=False),
    ),
}


class TestWithoutLabels:
    """A labeler that was forgotten is an error: else nothing would say where a row stands."""

    @pytest.mark.parametrize("kind", FORGETFUL)
    @pytest.mark.parametrize("options", [{}, {"tables": ("bias",)}], ids=["nothing", "kinds only"])
    def test_they_are_asked_for(self, kind, options):
        with pytest.raises(ValueError, match=r"labeler, num_labels.* or tables .* must be given, or tables=\(\) for"):
            FORGETFUL[kind](**options)
        ours, plain = FORGETFUL[kind](tables=())
        assert [*ours.state_dict()] == [*plain.state_dict()]
        assert "tables=()" in repr(ours)

    def test_what_else_says_where_rows_stand(self):
        for options in ({"rotary": rg.RotaryPositions(4)}, {"edge_dim": 3}, {"labeler": Window(2)}):
            assert rg.RelationAttention(12, 3, **options).tables is None

    def test_labels_need_tables(self):
        for options in ({"num_labels": 5}, {"labeler": LABELER}):
            with pytest.raises(ValueError, match="tables must hold different kinds .* at least one, got"):
                rg.RelationAttention(12, 3, tables=(), **options)


class TestAgainstTheReference:
    @pytest.mark.parametrize(
        ("kv_heads", "per_head", "causal"), [(1, False, True), (2, True, False), (4, ("bias", "value"), True)]
    )
    def test_all_tables_and_every_gradient(self, kv_heads, per_head, causal):
        layer = make(16, 4, tables=KINDS, per_head=per_head, num_kv_heads=kv_heads)
        x = torch.randn(2, 7, 16, dtype=F64, requires_grad=True)
        leaves = [x, *layer.parameters()]
        got = layer(x, labels=LABELER(7), is_causal=causal)
        wanted = by_hand(layer, x, labels=LABELER(7), is_causal=causal)
        close(got, wanted)
        weight = torch.randn_like(got)
        grads = [torch.autograd.grad((z * weight).sum(), leaves) for z in (got, wanted)]
        close(*grads)
        assert all(grad.abs().sum() > 0 for grad in grads[0])

    def test_cross_attention_with_widths_and_labels(self):
        layer = make(kdim=5, vdim=7, num_kv_heads=1, tables=KINDS)
        query, key, value = (torch.randn(2, *shape, dtype=F64) for shape in ((4, 12), (6, 5), (6, 7)))
        labels = DenseLabels(torch.randint(-1, 5, (2, 4, 6)), 5)
        close(layer(query, key, value, labels=labels), by_hand(layer, query, key, value, labels=labels))
        offset = LABELER(4, 6, q_offset=2)
        got = layer(query, key, value, labels=offset, is_causal=True)
        close(got, by_hand(layer, query, key, value, labels=offset, is_causal=True))
        plain_ids = torch.randint(-1, 5, (4, 6))
        got = layer(query, key, value, labels=plain_ids, is_causal=True, q_offset=2)
        close(got, by_hand(layer, query, key, value, labels=plain_ids, is_causal=True, q_offset=2))

    def test_a_sum_of_labels(self):
        labeler = ClippedDistance(2) + ClippedDistance(1)
        layer = make(num_labels=labeler.num_labels, tables=KINDS, names=labeler.names, per_head=True)
        x = torch.randn(2, 7, 12, dtype=F64)
        z, mass = layer(x, labels=labeler(7), need_label_mass=True)
        close(z, by_hand(layer, x, labels=labeler(7)))
        assert [m.shape for m in mass] == [(2, 3, 7, 5), (2, 3, 7, 3)]
        _, lone = layer(x[0], labels=labeler(7), need_label_mass=True)
        close(lone, tuple(m[0] for m in mass))

    @pytest.mark.parametrize("per_head", [False, True])
    def test_banks_give_rows_for_each_sample(self, per_head):
        """Code Transformer gives each sample its own bins and maps their middles to rows."""
        heads = 3 if per_head else 1

        class Bins(nn.Module):
            def __init__(self, dim):
                super().__init__()
                self.map = nn.Linear(1, heads * (dim or 1), dtype=F64)
                self.shape = (heads, dim) if dim else (heads,)

            def forward(self, middles):  # [B, R]
                return self.map(middles[..., None]).unflatten(-1, self.shape).transpose(1, 2)

        banks = {"key": Bins(4), "value": Bins(4), "bias": Bins(None)}
        tables = RelationTables(5, 4, 3, kinds=("key", "value", "bias"), per_head=per_head, banks=banks)
        layer = make(num_labels=None, tables=tables)
        x, middles = torch.randn(2, 7, 12, dtype=F64), torch.randn(2, 5, dtype=F64)
        labels = DenseLabels(torch.randint(-1, 5, (2, 7, 7)), 5)
        z = layer(x, labels=labels, bank_features=middles)
        for b in range(2):
            alone = DenseLabels(labels.ids[b : b + 1], 5)
            close(z[b : b + 1], layer(x[b : b + 1], labels=alone, bank_features=middles[b : b + 1]))
            close(z[b], layer(x[b], labels=alone, bank_features=middles[b : b + 1]))
        assert (z[0] - layer(x, labels=labels, bank_features=middles.flip(0))[0]).abs().max() > 1e-3
        z.square().sum().backward()
        assert all(p.grad.abs().sum() > 0 for bank in banks.values() for p in bank.parameters())
        with pytest.raises(ValueError, match=r"key_table must have shape \[B, 1, R, D\] or .* got \[3, "):
            layer(x, labels=labels, bank_features=torch.randn(3, 5, dtype=F64))


class TestPadding:
    @pytest.mark.parametrize(("side", "floating"), [("left", False), ("right", True)])
    def test_it_changes_nothing(self, side, floating):
        layer = make(tables=KINDS)
        short, long = torch.randn(4, 12, dtype=F64), torch.randn(7, 12, dtype=F64)
        filler = torch.randn(3, 12, dtype=F64)
        rows = slice(3, None) if side == "left" else slice(4)
        batch = torch.stack([torch.cat([filler, short] if side == "left" else [short, filler]), long])
        padding = torch.zeros(2, 7, dtype=torch.bool)
        padding[0, : 3 if side == "left" else None] = side == "left"
        if side == "right":
            padding[0, 4:] = True
        mask = torch.zeros(2, 7, dtype=F64).masked_fill(padding, float("-inf")) if floating else padding
        got = layer(batch, labels=LABELER(7), key_padding_mask=mask, is_causal=True)
        close(got[0, rows], layer(short, labels=LABELER(4), is_causal=True))
        close(got[1], layer(long, labels=LABELER(7), is_causal=True))

    @pytest.mark.parametrize("impl", ["dense", "chunked", "reference"])
    def test_a_row_that_sees_nothing(self, impl):
        layer, x = make(impl=impl), torch.randn(2, 5, 12, dtype=F64, requires_grad=True)
        mask = torch.zeros(5, 5, dtype=torch.bool)
        mask[2] = True
        padding = torch.tensor([[True] * 5, [False] * 5])
        z, mass = layer(x, labels=LABELER(5), attn_mask=mask, key_padding_mask=padding, need_label_mass=True)
        nothing = layer.out_proj.bias.expand(5, -1)
        close(z[0], nothing)
        close(z[1, 2], nothing[0])
        assert mass[0].abs().max() == 0
        z.square().sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in [x, *layer.parameters()])
        assert x.grad[0].abs().max() == 0

    def test_empty_inputs(self):
        layer = make()
        assert layer(torch.zeros(2, 0, 12, dtype=F64), labels=LABELER(0)).shape == (2, 0, 12)
        assert layer(torch.zeros(0, 3, 12, dtype=F64), labels=LABELER(3)).shape == (0, 3, 12)
        query, key = torch.zeros(2, 3, 12, dtype=F64), torch.zeros(2, 0, 12, dtype=F64)
        close(layer(query, key, labels=LABELER(3, 0)), layer.out_proj.bias.expand(2, 3, 12))


class TestWhatIsReturned:
    def test_weights_and_mass(self):
        layer, x = make(), torch.randn(2, 6, 12, dtype=F64)
        labels = some_edges(6, 5, -1)
        z = layer(x, labels=labels)
        both = layer(x, labels=labels, need_weights=True, need_label_mass=True)
        close(both[0], z)
        weights, mass = both[1:]
        close(weights.sum(-1), torch.ones(2, 3, 6, dtype=F64))
        ids = labels.to_dense()[0]
        for r in range(5):
            close(mass[..., r], (weights * (ids == r)).sum(-1))
        close(layer(x, labels=labels, need_weights=True), (z, weights))
        close(layer(x, labels=labels, need_label_mass=True), (z, mass))
        close(layer(x[0], labels=labels, need_weights=True, need_label_mass=True), (z[0], weights[0], mass[0]))


class TestPacked:
    def packed(self):
        lengths = [3, 0, 1, 5]
        ptr = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
        return ptr, [torch.randn(n, 12, dtype=F64) for n in lengths]

    def test_each_graph_alone(self):
        layer = make(tables=KINDS, num_kv_heads=1)
        ptr, graphs = self.packed()
        x = torch.cat(graphs)
        z, weights, mass = layer(x, labels=LABELER(9, ptr=ptr), is_causal=True, need_weights=True, need_label_mass=True)
        assert (z.shape, weights.shape, mass.shape) == ((9, 12), (3, 9, 9), (3, 9, 5))
        for graph, start, stop in zip(graphs, ptr, ptr[1:], strict=False):
            own = slice(int(start), int(stop))
            alone = layer(graph, labels=LABELER(len(graph)), is_causal=True, need_weights=True, need_label_mass=True)
            close((z[own], weights[:, own, own], mass[:, own]), alone)

    def test_blocks_masks_and_sums(self):
        layer = make(num_labels=4)
        _, graphs = self.packed()
        blocks = [torch.randint(0, 4, (len(graph), len(graph))) for graph in graphs]
        z = layer(torch.cat(graphs), labels=BlockLabels.from_blocks(blocks, 4))
        alone = [layer(g, labels=DenseLabels(block, 4)) for g, block in zip(graphs, blocks, strict=True)]
        close(z, torch.cat(alone))
        padding = torch.zeros(9, dtype=torch.bool)
        padding[2] = padding[5] = True
        labels = BlockLabels.from_blocks(blocks, 4)
        close(
            layer(torch.cat(graphs), labels=labels, key_padding_mask=padding),
            layer(torch.cat(graphs), labels=labels, attn_mask=padding.expand(9, 9)),
        )

    def test_queries_and_keys_of_different_lengths(self):
        layer = make(kdim=5, vdim=5)
        q_ptr, ptr = torch.tensor([0, 2, 3]), torch.tensor([0, 4, 9])
        query, key = torch.randn(3, 12, dtype=F64), torch.randn(9, 5, dtype=F64)
        z = layer(query, key, labels=LABELER(3, 9, ptr=ptr, q_ptr=q_ptr, q_offset=1))
        close(z[:2], layer(query[:2], key[:4], labels=LABELER(2, 4, q_offset=1)))
        close(z[2:], layer(query[2:], key[4:], labels=LABELER(1, 5, q_offset=1)))


class TestStates:
    def test_tables_tied_across_layers(self):
        tables = RelationTables(5, 4, 3, per_head=True, dtype=F64)
        model = nn.ModuleList(attention_layer(12, 3, tables=tables, dtype=F64) for _ in range(3))
        rows = [name for name, _ in model.named_parameters() if name.endswith("rows")]
        assert rows == ["0.tables.key.rows", "0.tables.value.rows"]
        x = torch.randn(2, 5, 12, dtype=F64)
        sum(layer(x, labels=LABELER(5)).sum() for layer in model).backward()
        alone = [torch.autograd.grad(layer(x, labels=LABELER(5)).sum(), tables.key.rows)[0] for layer in model]
        close(tables.key.rows.grad, sum(alone))
        assert len({id(layer.tables) for layer in copy.deepcopy(model)}) == 1

    def test_reset_draws_all_again(self):
        layer = make(tables=KINDS)
        before = {name: p.detach().clone() for name, p in layer.named_parameters()}
        layer.reset_parameters()
        zero = {"in_proj_bias", "out_proj.bias", "tables.bias.rows"}
        for name, parameter in layer.named_parameters():
            assert not torch.equal(parameter, before[name]) or name == "out_proj.bias"
            assert (parameter.abs().max() == 0) == (name in zero)

    def test_repr(self):
        layer = attention_layer(12, 4, 0.1, False, num_labels=5, num_kv_heads=2, kdim=6, impl="dense")
        first, *rest = repr(layer).split("\n")
        assert first == "RelationAttention("
        assert rest[0] == (
            "  12, num_heads=4, head_dim=3, num_kv_heads=2, kdim=6, dropout=0.1, impl='dense', bias=False"
        )
        assert "(key): LabelTable(5, 3)" in repr(layer)
        assert repr(attention_layer(12, 4)) == (
            "RelationAttention(\n  12, num_heads=4, head_dim=3, tables=()\n"
            "  (out_proj): Linear(in_features=12, out_features=12, bias=True)\n)"
        )


class TestCompiled:
    def test_with_masks_and_labels_made_inside(self):
        layer = make(impl="dense", num_kv_heads=1)
        counter = CompileCounterWithBackend("eager")

        def run(x, padding):
            return layer(x, labels=LABELER(x.shape[1]), key_padding_mask=padding, is_causal=True)

        compiled = torch.compile(run, backend=counter, fullgraph=True)
        for length in (5, 9, 12):
            x, padding = torch.randn(2, length, 12, dtype=F64, requires_grad=True), torch.rand(2, length) > 0.7
            leaves = [x, *layer.parameters()]
            close(*(torch.autograd.grad(f(x, padding).square().sum(), leaves) for f in (compiled, run)))
        assert counter.frame_count <= 3


class TestLabeler:
    def layer(self, labeler=None, **options):
        torch.manual_seed(0)
        return attention_layer(12, 3, labeler=labeler or ClippedDistance(2), dtype=F64, **options).eval()

    def test_it_labels_lengths(self):
        layer, x, memory = self.layer(), torch.randn(2, 7, 12, dtype=F64), torch.randn(2, 4, 12, dtype=F64)
        assert layer.tables.num_labels == 5 and layer.tables.key.names == ClippedDistance(2).names
        close(layer(x), layer(x, labels=layer.labeler(7)))
        close(layer(x[0]), layer(x, labels=layer.labeler(7))[0])
        close(layer(x, memory), layer(x, memory, labels=layer.labeler(7, 4)))
        close(layer(x, memory, q_offset=3), layer(x, memory, labels=layer.labeler(7, 4, q_offset=3)))
        close(layer(x, q_offset=1), layer(x, labels=layer.labeler(7, q_offset=1)))

    def test_with_caches(self):
        layer, x, memory = self.layer(), torch.randn(2, 7, 12, dtype=F64), torch.randn(2, 4, 12, dtype=F64)
        growing, static = rg.KVCache(), rg.KVCache(static=True)
        steps = [layer(x[:, i : i + 1], is_causal=True, cache=growing) for i in range(7)]
        close(torch.cat(steps, 1), layer(x, is_causal=True))
        close(layer(x, memory, cache=static), layer(x, memory))
        close(layer(x, cache=static), layer(x, memory))

    def test_it_gets_what_it_reads(self):
        x, segments = torch.randn(2, 7, 12, dtype=F64), torch.randint(3, (2, 7))
        layer = self.layer(rg.Segments(3))
        close(layer(x, labels=segments), layer(x, labels=layer.labeler(segments)))
        both = self.layer(rg.Segments(3) + ClippedDistance(2), per_head=True)
        close(
            both(x, labels=segments), both(x, labels=rg.labels.total(rg.Segments(3)(segments), ClippedDistance(2)(7)))
        )
        with pytest.raises(TypeError, match=r"labels must be Labels, or what ClippedDistance\(2\) reads, got Tensor"):
            self.layer()(x, labels=segments)
        with pytest.raises(
            TypeError, match=r"labels must be given, as the labeler Segments\(.*\) does not label lengths"
        ):
            layer(x)

    def test_options_and_repr(self):
        assert "labeler=ClippedDistance(2)" in repr(self.layer())
        assert self.layer(Window(2)).tables is None
        shared = rg.RelationTables(5, 4, dtype=F64)
        assert self.layer(tables=shared).tables is shared

    def test_it_says_which_implementation(self, monkeypatch):
        layer, x = self.layer(dropout=0.2), torch.randn(2, 7, 12, dtype=F64)
        taken = []
        monkeypatch.setattr(attention, "attend", lambda given: taken.append(choice_of(given)))
        for options in ({}, {"need_weights": True}, {"is_causal": True, "key_padding_mask": torch.zeros(2, 7).bool()}):
            with suppress(TypeError):  # there is no result
                layer(x, **options)
            assert layer.which_impl(x, **options) == taken.pop()
        assert layer.which_impl(x, need_weights=True).reason == "attention weights are asked for"
        assert self.layer(impl="reference").which_impl(x).impl == "reference"
        with pytest.raises(ValueError, match="query must end in embed_dim = 12"):
            layer.which_impl(x[..., :3])


def test_dropout_acts_in_training_only():
    layer, x = make(dropout=0.5), torch.randn(2, 7, 12, dtype=F64)
    assert (layer(x, labels=LABELER(7)) - by_hand(layer, x, labels=LABELER(7))).abs().max() > 1e-3
    close(layer.eval()(x, labels=LABELER(7)), by_hand(layer, x, labels=LABELER(7)))
