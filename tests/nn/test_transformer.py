"""The encoder-decoder: torch's own without relations, step-by-step decoding, presets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relgraph.labelers import ClippedDistance
from relgraph.nn import RelationTransformer
from tests.layers import transformer

from .helpers import F64, close, fill_tables


def make(*, kind="relative", heads=3, seed=0, **options):
    torch.manual_seed(seed)
    sizes = {"d_model": 12, "num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 20}
    sizes["labeler"] = ClippedDistance(2) if kind in ("relative", "both") else None
    sizes["positions"] = "sinusoidal" if kind in ("sinusoidal", "both") else None
    return fill_tables(transformer(nhead=heads, dtype=F64, **{**sizes, **options})).eval()


def inputs(src=6, tgt=5, batch=2):
    return torch.randn(batch, src, 12, dtype=F64), torch.randn(batch, tgt, 12, dtype=F64)


def decode(model, tgt, memory, chunks, **options):
    cache, pieces, start = model.new_cache(), [], 0
    for size in chunks:
        pieces.append(model.decode(tgt[:, start : start + size], memory, cache=cache, **options))
        start += size
    return torch.cat(pieces, 1)


class TestAgainstTorch:
    def test_parameters_start_alike(self):
        model = transformer(64, 4, 2, 2, 128, labeler=ClippedDistance(16), per_head=True)
        bound = (6 / (64 + 128)) ** 0.5
        weight = model.decoder.layers[1].linear1.weight
        assert bound * 0.95 < weight.abs().max() <= bound
        first, second = (layer.self_attn for layer in model.encoder.layers)
        assert not torch.equal(first.in_proj_weight, second.in_proj_weight)
        assert not torch.equal(first.tables.key.rows, second.tables.key.rows)
        assert first.tables.key.rows.shape == (4, 33, 16)
        assert first.tables.key.rows.std().item() == pytest.approx(0.25, rel=0.1)
        assert model.decoder.layers[0].multihead_attn.tables is None


class TestDecoding:
    @settings(max_examples=15)
    @given(chunks=st.lists(st.integers(1, 3), min_size=1, max_size=4), kind=st.sampled_from(["relative", "both"]))
    def test_step_by_step(self, chunks, kind):
        model = make(kind=kind, num_kv_heads=1, per_head=True)
        src, tgt = inputs(tgt=sum(chunks))
        padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
        wanted = model(src, tgt, src_key_padding_mask=padding, memory_key_padding_mask=padding)
        with torch.no_grad():
            memory = model.encode(src, src_key_padding_mask=padding)
            close(decode(model, tgt, memory, chunks, memory_key_padding_mask=padding), wanted)


class TestPaddingOnTheLeft:
    SRC_PADS, TGT_PADS = (3, 0, 5), (4, 1, 0)

    def batch(self, kind, form):
        model = make(kind=kind)
        src, tgt = inputs(src=7, tgt=6, batch=3)
        masks = [
            torch.arange(x.shape[1]) < torch.tensor(n)[:, None] for x, n in ((src, self.SRC_PADS), (tgt, self.TGT_PADS))
        ]
        if form == "float":
            masks = [torch.zeros(mask.shape, dtype=F64).masked_fill(mask, float("-inf")) for mask in masks]
        alone = [
            model(src[b : b + 1, m:], tgt[b : b + 1, n:])
            for b, (m, n) in enumerate(zip(self.SRC_PADS, self.TGT_PADS, strict=True))
        ]
        return model, src, tgt, masks, alone

    def compare(self, got, alone):
        for row, (pads, wanted) in enumerate(zip(self.TGT_PADS, alone, strict=True)):
            close(got[row : row + 1, pads:], wanted)

    @pytest.mark.parametrize(("kind", "form"), [("relative", "float"), ("sinusoidal", "bool"), ("both", "bool")])
    def test_each_sentence_as_if_alone(self, kind, form):
        model, src, tgt, (ours, theirs), alone = self.batch(kind, form)
        masks = {"tgt_key_padding_mask": theirs, "memory_key_padding_mask": ours}
        self.compare(model(src, tgt, src_key_padding_mask=ours, **masks), alone)
        one = model(src[0], tgt[0], src_key_padding_mask=ours[0], **{name: mask[0] for name, mask in masks.items()})
        close(one[4:], alone[0][0])

    @pytest.mark.parametrize(("chunks", "form"), [((2, 4), "float"), ((4, 1, 1), "bool"), ((1,) * 6, "bool")])
    def test_piece_by_piece(self, chunks, form):
        model, src, tgt, (ours, theirs), alone = self.batch("both", form)
        memory, cache, pieces, start = model.encode(src, src_key_padding_mask=ours), model.new_cache(), [], 0
        for size in chunks:
            rows = slice(start, start + size)
            # Once all padding is in the cache no mask is needed any more.
            mask = theirs[:, rows] if start < max(self.TGT_PADS) else None
            masks = {"tgt_key_padding_mask": mask, "memory_key_padding_mask": ours}
            pieces.append(model.decode(tgt[:, rows], memory, cache=cache, **masks))
            start += size
        self.compare(torch.cat(pieces, 1), alone)

    def test_padding_within_counts(self):
        model, (src, _) = make(kind="sinusoidal"), inputs()
        padding = torch.tensor([[True, False, True, False, False, True], [False, True, *[False] * 4]])
        seen = []
        model.encoder.layers[0].register_forward_pre_hook(lambda layer, args: seen.append(args[0] - src))
        model.encode(src, src_key_padding_mask=padding)
        zero = torch.zeros(1, 6, 12, dtype=F64)
        close(seen[0], torch.cat([model.positions(zero, -1), model.positions(zero)]))


class TestPositions:
    def test_sinusoids_are_added_to_both_inputs(self):
        model, bare = make(kind="sinusoidal"), make(kind="none")
        src, tgt = inputs()
        close(model(src, tgt), bare(model.positions(src), model.positions(tgt)))


class TestCustom:
    def test_stacks_keep_their_values(self):
        made = make(seed=3)
        encoder, decoder = made.encoder, made.decoder
        before = {name: value.clone() for name, value in made.state_dict().items()}
        again = RelationTransformer(12, 3, dropout=0.0, custom_encoder=encoder, custom_decoder=decoder)
        assert again.encoder is encoder and again.decoder is decoder
        assert all(torch.equal(value, before[name]) for name, value in again.state_dict().items())
        half = RelationTransformer(12, 3, 1, 1, 20, custom_encoder=encoder, labeler=ClippedDistance(4))
        assert half.decoder.layers[0].labeler == ClippedDistance(4) and encoder.layers[0].labeler == ClippedDistance(2)
        assert half.decoder.layers[0].linear1.weight.dtype == F64

    def test_what_a_stack_has_is_not_said_again(self):
        made = make()
        both = {"custom_encoder": made.encoder, "custom_decoder": made.decoder}
        with pytest.raises(ValueError, match="labeler must be left out with both custom_encoder and custom_decoder"):
            RelationTransformer(12, 3, labeler=ClippedDistance(5), **both)
        for name in ("target_labeler", "memory_labeler"):
            with pytest.raises(ValueError, match=f"{name} must be left out with custom_decoder, which has its own"):
                RelationTransformer(12, 3, **both, **{name: ClippedDistance(5)})
        with pytest.raises(ValueError, match="custom_encoder must have d_model = 24 and nhead = 3, got 12 and 3"):
            RelationTransformer(24, 3, **both)


class TestPresets:
    def test_base(self):
        with torch.device("meta"):
            model = RelationTransformer.base()
        layer = model.encoder.layers[5]
        assert (model.d_model, model.nhead, layer.linear1.out_features, layer.dropout.p) == (512, 8, 1024, 0.1)
        assert (model.encoder.num_layers, model.decoder.num_layers) == (6, 6)
        assert layer.self_attn.tables.key.rows.shape == (8, 33, 64)
        assert model.decoder.layers[5].self_attn.tables.value.rows.shape == (8, 33, 64)
        assert model.positions is None


class TestModule:
    def test_a_state_of_other_distances_is_refused(self):
        state = make().state_dict()
        with pytest.raises(
            ValueError, match=r"names must be .* state, which has 5 labels, got 7 in encoder\.layers\.0\."
        ):
            transformer(12, 3, 2, 2, 20, labeler=ClippedDistance(3), dtype=F64).load_state_dict(
                {name: value for name, value in state.items() if not name.endswith("rows")}, strict=False
            )

    def test_every_parameter_learns(self):
        model, (src, tgt) = make(kind="relative", tables=("key", "value", "query", "bias")), inputs()
        model.train()(src, tgt).square().sum().backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
