"""The encoder layer: torch's own with zero tables, and under torch's own stack."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from relgraph.labelers import ClippedDistance, FromFunction, Window, dependency_relations
from relgraph.nn import RelationEncoder, RelationEncoderLayer, RelationTables
from relgraph.nn.made_labels import make_labels
from tests.layers import encoder_layer

from .helpers import F64, by_hand, close, fill_tables, zero_tables

LABELER = ClippedDistance(2)
WRITTEN = FromFunction(lambda i, j: (i + j) % 3, 3)


def make(**options):
    torch.manual_seed(0)
    sizes = {"d_model": 12, "nhead": 3, "dim_feedforward": 20, "labeler": LABELER}
    return fill_tables(encoder_layer(**{**sizes, "dtype": F64, **options})).eval()


def plain_layer(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, dtype=F64, **options).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


def test_activations_have_torchs_names():
    named = {name: make(activation=name).activation for name in ("relu", "gelu", "silu")}
    assert named == {name: getattr(functional, name) for name in named}


class TestAgainstTorch:
    @pytest.mark.parametrize("norm_first", [False, True])
    @pytest.mark.parametrize("options", [{}, {"activation": "gelu"}, {"bias": False}, {"activation": torch.tanh}])
    @pytest.mark.parametrize("tables", [False, True])
    def test_the_same_values(self, norm_first, options, tables):
        plain = plain_layer(norm_first=norm_first, layer_norm_eps=1e-3, **options)
        ours = RelationEncoderLayer.from_plain(plain, **({"labeler": LABELER} if tables else {"tables": ()}))
        zero_tables(ours)
        x = torch.randn(2, 6, 12, dtype=F64)
        padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
        mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=F64)
        close(ours(x), plain(x))
        close(ours(x[0]), plain(x[0]))
        got = ours(x, src_key_padding_mask=padding)
        close(got[~padding], plain(x, src_key_padding_mask=padding)[~padding])
        close(ours(x, mask, is_causal=True), plain(x, mask, is_causal=True))
        close(ours(x, is_causal=True), plain(x, mask, is_causal=True))
        wanted = plain(x, mask, torch.zeros(2, 6, dtype=F64).masked_fill(padding, float("-inf")))
        close(ours(x, mask, padding)[~padding], wanted[~padding])

    def test_new_tables(self):
        plain, x = plain_layer(), torch.randn(2, 6, 12, dtype=F64)
        ours = RelationEncoderLayer.from_plain(plain, labeler=LABELER, tables=("key", "value", "bias"))
        close(ours(x), plain(x))
        ours(x).square().sum().backward()
        rows = [table.rows for table in ours.self_attn.tables.children()]
        assert all(row.grad.abs().sum() > 0 for row in rows)
        assert RelationEncoderLayer.from_plain(
            plain, labeler=LABELER, new_tables="random"
        ).self_attn.tables.key.rows.any()
        shared = RelationTables(5, 4, dtype=F64)
        assert RelationEncoderLayer.from_plain(plain, tables=shared, num_labels=5).self_attn.tables.key.rows.any()


class TestUnderTorchsStack:
    def stacks(self, **options):
        layer = make(dropout=0.0, **options)
        theirs = nn.TransformerEncoder(layer, 2, nn.LayerNorm(12, dtype=F64), enable_nested_tensor=False)
        ours = RelationEncoder(layer, 2, nn.LayerNorm(12, dtype=F64))
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.normal_(std=0.3)
        ours.load_state_dict(theirs.state_dict())
        return theirs, ours

    @pytest.mark.parametrize("mode", ["train", "eval"])
    def test_it_equals_ours(self, mode):
        theirs, ours = self.stacks()
        x = torch.randn(2, 6, 12, dtype=F64)
        padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
        mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=F64)
        getattr(theirs, mode)(), getattr(ours, mode)()
        with torch.set_grad_enabled(mode == "train"):
            close(theirs(x), ours(x))
            close(theirs(x, src_key_padding_mask=padding), ours(x, src_key_padding_mask=padding))
            close(theirs(x, mask), ours(x, mask))
            close(theirs(x, mask), ours(x, is_causal=True))


class TestLabels:
    def test_made_or_given(self):
        layer, x = make(), torch.randn(2, 6, 12, dtype=F64)
        close(layer(x), layer(x, labels=LABELER(6)))
        assert (layer(x) - layer(x, labels=LABELER(6, q_offset=1))).abs().max() > 1e-3
        assert layer.self_attn.tables.value.names == LABELER.names

    def test_written_out(self):
        layer, x = make(per_head=True, tables=("key", "value", "query", "bias"), num_kv_heads=1), torch.randn(2, 6, 12)
        x = x.double()
        y = layer.norm1(x + by_hand(layer.self_attn, x, labels=LABELER(6)))
        wanted = layer.norm2(y + layer.linear2(functional.relu(layer.linear1(y))))
        close(layer(x), wanted)

    @pytest.mark.parametrize("labeler", [WRITTEN, LABELER + WRITTEN])
    def test_made_on_the_cpu_for_rows_elsewhere(self, labeler):
        x = torch.zeros(2, 6, 12, dtype=F64, device="meta")
        assert make_labels(labeler, None, "src", x, None).device == x.device
        out = make(labeler=labeler).to("meta")(x)
        assert (out.shape, out.device.type) == ((2, 6, 12), "meta")

    def test_a_labeler_without_labels_makes_no_tables(self):
        layer, x = make(labeler=Window(1)), torch.randn(2, 6, 12, dtype=F64)
        assert layer.self_attn.tables is None
        distance = torch.arange(6) - torch.arange(6)[:, None]
        close(layer(x), make(labeler=None)(x, distance.abs() > 1))


class TestModule:
    def test_checkpointing(self):
        layer, x = make().train(), torch.randn(2, 6, 12, dtype=F64, requires_grad=True)
        grads = []
        for run in (layer, lambda x: checkpoint(layer, x, use_reentrant=False)):
            torch.manual_seed(1)  # of dropout
            grads.append(torch.autograd.grad(run(x).square().sum(), [x, *layer.parameters()]))
        close(*grads)

    def test_repr(self):
        first = repr(make(norm_first=True)).split("\n")[1]
        assert first == "  norm_first=True, activation=relu"
        long = repr(make(labeler=dependency_relations())).split("\n")[3]
        assert long == (
            "    12, num_heads=3, head_dim=4, dropout=0.1, labeler=EdgeType(('acl', 'advcl', 'advmod', 'amod', 'appos', "
            "'aux', 'case', 'cc', 'ccomp ... ', 'xcomp'), inverse=True, attend='all')"
        )
        assert "activation" not in repr(make(labeler=None, activation=nn.ReLU())).split("\n")[1]
