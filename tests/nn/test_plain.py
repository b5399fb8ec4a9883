"""Layers of torch become layers of this package: with new tables of zero, all outputs stay the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import relgraph as rg

from .helpers import F64, close

LABELER = rg.ClippedDistance(2)
PADDING = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
BLOCKED = torch.rand(5, 7, generator=torch.Generator().manual_seed(0)) > 0.7


def perturbed(module):
    """Change every parameter of a module and set evaluation mode."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return module.eval()


def assert_copied(made, plain, before):
    """Check that ``plain`` is as before and that ``made`` holds copies of its weights."""
    close(plain.state_dict(), before, atol=0.0)
    mine, theirs = dict(made.named_parameters()), dict(plain.named_parameters())
    assert all(torch.equal(mine[name], parameter) for name, parameter in theirs.items())
    assert not {p.data_ptr() for p in mine.values()} & {p.data_ptr() for p in theirs.values()}
    assert made.training == plain.training


def state_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize(("bias", "kdim"), [(True, None), (False, 6), (False, None), (True, 6)])
def test_attention(bias, kdim):
    torch.manual_seed(0)
    plain = perturbed(nn.MultiheadAttention(12, 3, 0.2, bias, kdim=kdim, vdim=kdim, batch_first=True, dtype=F64))
    before = state_of(plain)
    made = rg.RelationAttention.from_plain(plain, labeler=LABELER)
    assert_copied(made, plain, before)
    assert made.dropout == 0.2
    query, key = torch.randn(2, 5, 12, dtype=F64), torch.randn(2, 7, kdim or 12, dtype=F64)
    masks = {"key_padding_mask": PADDING, "attn_mask": BLOCKED}
    for average in (True, False):
        wanted = plain(query, key, key, **masks, average_attn_weights=average)
        close(made(query, key, **masks, q_offset=0, need_weights=True, average_attn_weights=average), wanted)
    random = rg.RelationAttention.from_plain(plain, new_tables="random", num_labels=5, tables=("key",))
    assert random.tables.key.rows.any()


def test_a_plain_state_without_tables_is_refused_with_the_ways_to_load_it():
    plain, made = nn.MultiheadAttention(12, 3, batch_first=True), rg.RelationAttention(12, 3, labeler=LABELER)
    way = r"Missing key(.|\n)*\n\tuse RelationAttention.from_plain\(old, labeler=...\), or strict=False$"
    with pytest.raises(RuntimeError, match=way):
        made.load_state_dict(plain.state_dict())
    for state in (made.state_dict() | {"other": torch.zeros(1)}, nn.Linear(2, 3).state_dict()):
        with pytest.raises(RuntimeError, match=r"Unexpected key.*\. $"):
            made.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"size mismatch for out_proj.bias.*model is torch.Size\(\[12\]\).$"):
        made.load_state_dict(nn.MultiheadAttention(8, 2).state_dict(), strict=False)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(("norm_first", "bias", "activation"), [(False, True, "relu"), (True, False, torch.tanh)])
def test_models(norm_first, bias, activation):
    torch.manual_seed(0)
    options = {"norm_first": norm_first, "bias": bias, "batch_first": True, "dtype": F64}
    plain = perturbed(nn.Transformer(12, 3, 2, 2, 20, 0.3, activation, **options))
    plain.encoder.layers[1].dropout1.p, plain.decoder.layers[0].multihead_attn.dropout = 0.2, 0.1
    plain.decoder.norm.eps = plain.encoder.layers[0].norm1.eps = 0.5
    before = state_of(plain)
    made = rg.RelationTransformer.from_plain(plain, labeler=LABELER, memory_labeler=LABELER)
    assert_copied(made, plain, before)
    assert made.dropout.p == 0.0
    assert [made.encoder.layers[i].dropout1.p for i in (0, 1)] == [0.3, 0.2]
    assert [made.decoder.layers[i].multihead_attn.dropout for i in (0, 1)] == [0.1, 0.3]
    assert made.memory_labeler == made.encoder.layers[0].labeler == LABELER
    src, tgt = torch.randn(2, 7, 12, dtype=F64), torch.randn(2, 5, 12, dtype=F64)
    masks = {"src_key_padding_mask": PADDING, "memory_key_padding_mask": PADDING, "memory_mask": BLOCKED}
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    masks["src_mask"] = torch.rand(7, 7) > 0.8
    masks["src_mask"].fill_diagonal_(False)
    masks["tgt_key_padding_mask"] = torch.tensor([[False] * 5, [False] * 4 + [True]])
    wanted = plain(src, tgt, tgt_mask=causal, **masks)
    close(made(src, tgt, **masks), wanted)
    close(made(src, tgt, **masks, tgt_is_causal=False), plain(src, tgt, **masks))
    encoder = rg.RelationEncoder.from_plain(plain.encoder, tables=())
    memory = encoder(src, masks["src_mask"], PADDING)
    close(memory[~PADDING], plain.encoder(src, masks["src_mask"], PADDING)[~PADDING])
    attention = rg.RelationAttention(12, 3, bias=bias, labeler=LABELER, score=rg.score.Softcap(1e9), dtype=F64)
    decoder = rg.RelationDecoder.from_plain(plain.decoder, self_attention=attention)
    close(decoder(tgt, memory, None, BLOCKED, masks["tgt_key_padding_mask"], PADDING), wanted)
    assert decoder.layers[0].self_attn is not decoder.layers[1].self_attn
    random = rg.RelationDecoder.from_plain(plain.decoder, labeler=LABELER, new_tables="random")
    first, second = (layer.self_attn.tables.key.rows for layer in random.layers)
    assert not torch.equal(first, second)
    assert torch.equal(random.layers[1].linear1.weight, plain.decoder.layers[1].linear1.weight)


def test_an_activation_with_parameters():
    plain = nn.TransformerEncoderLayer(12, 3, 20, activation=nn.PReLU(), batch_first=True)
    made, x = rg.RelationEncoderLayer.from_plain(plain.eval(), tables=()), torch.randn(2, 7, 12)
    assert made.activation is not plain.activation
    close(made(x), plain(x), atol=1e-6)


def test_what_cannot_be_converted():
    late, ours = nn.TransformerEncoderLayer(12, 3, 20), rg.RelationEncoderLayer(12, 3, 20, tables=())
    match = "must be batch first, as the new one is, got batch_first=False: make one with batch_first=True"
    with pytest.raises(ValueError, match=f"^layer {match}"):
        rg.RelationEncoderLayer.from_plain(late)
    with pytest.raises(ValueError, match=f"^attention {match}"):
        rg.RelationAttention.from_plain(nn.MultiheadAttention(12, 3))
    with pytest.raises(ValueError, match=f"^stack {match}"):
        rg.RelationEncoder.from_plain(nn.TransformerEncoder(late, 1, enable_nested_tensor=False))
    with pytest.raises(TypeError, match="^the layers of stack must be a nn.TransformerEncoderLayer, got Relation"):
        rg.RelationEncoder.from_plain(nn.TransformerEncoder(ours, 1, enable_nested_tensor=False))
    with pytest.raises(TypeError, match=r"^layer must be a nn.TransformerDecoderLayer, got TransformerEncoderLayer"):
        rg.RelationDecoderLayer.from_plain(late)
    with pytest.raises(NotImplementedError, match="attention must not add keys of its own"):
        rg.RelationAttention.from_plain(nn.MultiheadAttention(12, 3, add_zero_attn=True, batch_first=True))
    plain = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True)
    with pytest.raises(ValueError, match="must have the parameters of layer: self_attn.in_proj_weight of shape"):
        rg.RelationEncoderLayer.from_plain(plain, attention=rg.RelationAttention(12, 3, head_dim=8, tables=()))


def _layer(heads=2, **options):
    return nn.TransformerEncoderLayer(8, heads, 16, batch_first=True, **options)


def _with(name, module):
    layer = _layer()
    setattr(layer, name, module)
    return layer


class _Own(nn.TransformerEncoderLayer):
    def forward(self, src):  # pyright: ignore[reportIncompatibleMethodOverride]
        return src


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(
    ("second", "error", "match"),
    [
        (_layer(4), ValueError, "self_attn of layer must have 2 heads, as the new one, got 4"),
        (_layer(bias=False), ValueError, r"layer must have \S*bias, as the new module has, got none"),
        (_with("norm1", nn.RMSNorm(8)), ValueError, "layer must have norm1.bias, as the new module has, got none"),
        (_with("linear2", nn.Linear(16, 8, bias=False)), ValueError, "layer must have linear2.bias"),
        (_Own(8, 2, 16, batch_first=True), TypeError, "nn.TransformerEncoderLayer does, got _Own with its own forward"),
    ],
)
def test_layers_that_compute_something_else_are_refused(second, error, match):
    stack = nn.TransformerEncoder(_layer(), 2)
    stack.layers[1] = second
    with pytest.raises(error, match=match):
        rg.RelationEncoder.from_plain(stack, tables=())


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("new_tables", ["zero", "random"])
@pytest.mark.parametrize("shared", [False, True])
def test_tables_that_a_caller_passes_keep_their_rows(new_tables, shared):
    tables = rg.RelationTables(LABELER, 4, shared=shared)
    before = state_of(tables)
    layer = rg.RelationEncoderLayer.from_plain(_layer(), labeler=LABELER, tables=tables, new_tables=new_tables)
    stack = rg.RelationEncoder.from_plain(
        nn.TransformerEncoder(_layer(), 2), labeler=LABELER, tables=tables, new_tables=new_tables
    )
    for one in (layer, *stack.layers):
        close(one.self_attn.tables.state_dict(), before, atol=0.0)
        assert not shared or one.self_attn.tables is tables
