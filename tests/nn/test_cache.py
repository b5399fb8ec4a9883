"""Decoding piece by piece gives what one pass gives."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend

import relgraph as rg
from relgraph.impl.native import build
from relgraph.impl.native.prepared import _AllPairs
from relgraph.labelers import ClippedDistance
from relgraph.labels import DenseLabels
from relgraph.nn import KVCache, LayerCache, RelationAttention, RelationEncoder, StackCache
from tests.cases import KINDS
from tests.layers import encoder_layer

from .helpers import F64, close, fill_tables

LABELER = ClippedDistance(2)


def make(**options):
    torch.manual_seed(0)
    options = {"num_labels": 5, "tables": ("key", "value", "query", "bias"), **options}
    return fill_tables(RelationAttention(12, 3, dtype=F64, **options)).eval()


def decode(layer, x, chunks, cache, *, padding=None, **options):
    """Run ``layer`` over ``x`` chunk by chunk."""
    out, start = [], 0
    for size in chunks:
        stop = start + size
        mask = None if padding is None else padding[..., start:stop]
        labels = LABELER(size, stop, q_offset=start)
        assert len(cache) == start
        z = layer(x[..., start:stop, :], labels=labels, is_causal=True, cache=cache, key_padding_mask=mask, **options)
        out.append(z)
        start = stop
    return torch.cat(out, -2)


CHUNKS = st.lists(st.integers(1, 6), min_size=1, max_size=6)


class TestPieces:
    @given(chunks=CHUNKS, max_len=st.sampled_from([None, 36]), kv_heads=st.sampled_from([1, 3]), grad=st.booleans())
    def test_any_chunks(self, chunks, max_len, kv_heads, grad):
        layer, length = make(num_kv_heads=kv_heads), sum(chunks)
        x = torch.randn(2, length, 12, dtype=F64)
        with torch.set_grad_enabled(grad):
            cache = KVCache(max_len)
            close(decode(layer, x, chunks, cache), layer(x, labels=LABELER(length), is_causal=True))
        assert len(cache) == length
        assert cache.key.shape == cache.value.shape == (2, kv_heads, length, 4)

    @given(chunks=CHUNKS, bools=st.lists(st.sampled_from(["none", "bool", "float"]), min_size=6, max_size=6))
    def test_masks_of_any_chunk_are_remembered(self, chunks, bools):
        layer, length, cache = make(), sum(chunks), KVCache()
        x, start = torch.randn(2, length, 12, dtype=F64), 0
        whole = torch.zeros(2, length, dtype=F64)
        out = []
        with torch.no_grad():
            for size, kind in zip(chunks, bools, strict=False):
                rows, mask = slice(start, start + size), None
                if kind != "none":
                    mask = torch.rand(2, size) > 0.5
                    whole[:, rows] = whole[:, rows].masked_fill(mask, float("-inf"))
                if kind == "float":
                    mask = torch.zeros(2, size, dtype=F64).masked_fill(mask, float("-inf"))
                labels = LABELER(size, start + size, q_offset=start)
                options = {"labels": labels, "is_causal": True, "key_padding_mask": mask}
                out.append(layer(x[:, rows], cache=cache, **options))
                start += size
            wanted = layer(x, labels=LABELER(length), is_causal=True, key_padding_mask=whole)
        close(torch.cat(out, 1), wanted)

    def test_what_else_is_returned(self):
        layer, x, cache = make(), torch.randn(2, 5, 12, dtype=F64), KVCache()
        whole = layer(x, labels=LABELER(5), is_causal=True, need_weights=True, need_label_mass=True)
        layer(x[:, :3], labels=LABELER(3), is_causal=True, cache=cache)
        options = {"is_causal": True, "cache": cache, "need_weights": True, "need_label_mass": True}
        z, weights, mass = layer(x[:, 3:], labels=LABELER(2, 5, q_offset=3), **options)
        close((z, weights, mass), (whole[0][:, 3:], whole[1][:, :, 3:], whole[2][:, :, 3:]))


STEPS = {
    "distance": {},
    "several rows": {"rows": 3},
    "one key head, in float32": {"num_kv_heads": 1, "dtype": torch.float32},
    "left padding": {"padding": [3, 0]},
    "padding by floats": {"padding": [3, 0], "floats": True, "rows": 2},
    "a growing cache": {"max_len": None},
    "biases of buckets": {"labeler": rg.BucketedDistance(8, 20), "tables": ("bias",)},
    "keys before the lookup and after it": {"labeler": rg.ClippedDistance((40, 1)), "rows": 4},
    "all tables per head": {"per_head": True},
    "a window": {"labeler": rg.Window(3, 0), "tables": ("key",)},
    "no labels": {"labeler": None, "tables": (), "rows": 2},
    "without a batch": {"batch": None},
}


@pytest.mark.skipif(build.missing() is not None, reason=f"no compiled kernels: {build.missing()}")
class TestSteps:
    """Steps of decoding without gradients: those after the first are prepared, whatever the number of keys."""

    @pytest.fixture
    def prepared(self, monkeypatch):
        found, answer = [], _AllPairs.answer_step
        monkeypatch.setattr(_AllPairs, "answer_step", lambda *args: found.append(args) or answer(*args))
        return found

    @pytest.mark.parametrize("case", STEPS)
    @pytest.mark.parametrize("whole", [False, True], ids=["own labels", "labels of the whole"])
    def test_equal_one_pass(self, case, whole, prepared):
        how = {"rows": 1, "batch": 2, "padding": None, "floats": False, "max_len": 31, "labeler": rg.ClippedDistance(4)}
        how |= STEPS[case]
        taken = {name: how.pop(name) for name in ("rows", "batch", "padding", "floats", "max_len")}
        dtype, per_head = how.pop("dtype", F64), how.pop("per_head", False)
        if per_head:
            how["tables"] = rg.RelationTables(9, 4, 3, per_head=True, dtype=dtype)
        torch.manual_seed(0)
        layer = RelationAttention(12, 3, dtype=dtype, impl="native", **how).eval()
        n, rows = 31, taken["rows"]
        x = torch.randn(*([] if taken["batch"] is None else [2]), n, 12, dtype=dtype)
        labels = layer.labeler(n) if whole and layer.labeler is not None else None
        padding = None
        if taken["padding"] is not None:
            padding = torch.arange(n) < torch.tensor(taken["padding"])[:, None]
            padding = torch.zeros(2, n, dtype=dtype).masked_fill(padding, -3.0) if taken["floats"] else padding
        truth = copy.deepcopy(layer).double()
        truth.impl = "reference"
        pad = None if padding is None or not taken["floats"] else padding.double()
        pad = padding if pad is None else pad
        with torch.no_grad():
            wanted = truth(x.double(), is_causal=True, key_padding_mask=pad)
            cache, out, start = KVCache(taken["max_len"]), [], 0
            while start < n:
                stop = min(start + rows, n) if start else 5
                mask = None if padding is None else padding[:, start:stop]
                options = {"labels": labels, "is_causal": True, "cache": cache, "key_padding_mask": mask}
                out.append(layer(x[..., start:stop, :], **options))
                start = stop
        torch.testing.assert_close(
            torch.cat(out, -2).double(), wanted, **({} if dtype == F64 else {"atol": 2e-5, "rtol": 1e-5})
        )
        steps, forms = -(-(n - 5) // rows), len({26 % rows, 0}) if taken["max_len"] else 4  # the room of keys doubles
        assert len(prepared) >= steps - forms

    def test_more_keys_than_a_panel_and_than_a_block_of_rows(self, prepared):
        layer = RelationAttention(8, 2, labeler=rg.ClippedDistance(3), impl="native").eval()
        x = torch.randn(1, 530, 8)
        with torch.no_grad():
            cache = KVCache(530)
            first = layer(x[:, :100], is_causal=True, cache=cache)
            layer(x[:, 100:101], is_causal=True, cache=cache)
            cache.reset()
            layer(x[:, :528], is_causal=True, cache=cache)
            rest = [layer(x[:, n : n + 1], is_causal=True, cache=cache) for n in (528, 529)]
            layer.impl = "reference"
            wanted = layer(x, is_causal=True)
        assert len(prepared) == 3
        torch.testing.assert_close(
            torch.cat([first, *rest], 1), wanted[:, [*range(100), 528, 529]], atol=1e-5, rtol=1e-5
        )

    def test_what_does_not_fit_is_still_refused(self, prepared):
        layer, x = RelationAttention(8, 2, labeler=rg.ClippedDistance(3)).eval(), torch.randn(2, 9, 8)
        with torch.no_grad():
            cache = KVCache(4)
            for n in range(4):
                layer(x[:, n : n + 1], is_causal=True, cache=cache)
            with pytest.raises(ValueError, match="at most max_len = 4 keys"):
                layer(x[:, 4:5], is_causal=True, cache=cache)
            with pytest.raises(ValueError, match="cache holds 2 batch rows"):
                layer(x[:1, 4:5], is_causal=True, cache=cache)
            with pytest.raises(ValueError, match="dtype of the layer"):
                layer(x[:, 4:5].double(), is_causal=True, cache=cache)
            query, key = torch.randn(1, 2, 1, 4), torch.randn(1, 2, 6, 4)
            for keys in (4, 5, 6):
                labels = rg.ClippedDistance(3)(1, keys, q_offset=keys - 1)
                seen = len(prepared)
                rg.relation_attention(
                    query, key[:, :, :keys], key[:, :, :keys], labels, torch.randn(7, 4), impl="native"
                )
            assert len(prepared) == seen + 1
            with pytest.raises(ValueError, match="labels must cover"):
                rg.relation_attention(query, key[:, :, :5], key[:, :, :5], labels, torch.randn(7, 4), impl="native")
            with pytest.raises(ValueError, match="q_offset must be that of the labels"):
                rg.relation_attention(query, key, key, labels, torch.randn(7, 4), impl="native", q_offset=3)
            mask = torch.ones(1, 1, 1, 5, dtype=torch.bool)
            with pytest.raises(ValueError, match="attn_mask must broadcast"):
                rg.relation_attention(query, key, key, labels, torch.randn(7, 4), impl="native", attn_mask=mask)

    def test_other_weights_tables_and_labelers_are_seen(self):
        x, cache = torch.randn(1, 8, 8, dtype=F64), KVCache()
        layer = RelationAttention(8, 2, labeler=rg.ClippedDistance(3), dtype=F64).eval()
        with torch.no_grad():
            for n in range(6):
                layer(x[:, n : n + 1], is_causal=True, cache=cache)
            layer.tables.value.rows.add_(1.0)
            layer.tables.key.register_forward_hook(lambda module, args, rows: rows * 2)
            found = layer(x[:, 6:7], is_causal=True, cache=cache)
            wanted = copy.deepcopy(layer)
            wanted.impl = "reference"
            close(found, wanted(x[:, :7], is_causal=True)[:, 6:])
            layer.labeler = rg.ClippedDistance((5, 1))
            with pytest.raises(ValueError, match="names of the tables"):
                layer(x[:, 7:8], is_causal=True, cache=cache)


def product(n):
    return rg.labels.product(LABELER(n), DenseLabels(torch.randint(-1, 3, (n, n)), 3))


OTHERS = ("packed", "cross", "before", "per row", "scalar tensor", "block", "dense", "none")
"""These kinds do not have N rows and N keys from position 0."""

OF_A_WHOLE = {kind: make for kind, make in KINDS.items() if not any(word in kind for word in OTHERS)} | {
    "dense": lambda n: DenseLabels(torch.randint(-1, 4, (2, n, n)), 4, attend=torch.rand(2, n, n) > 0.2),
    "edges over dense": KINDS["edges over dense"],
    "product": product,
}


class TestLabelsOfTheWhole:
    @pytest.mark.parametrize("kind", OF_A_WHOLE)
    @pytest.mark.parametrize("chunks", [(3, 1, 4)])
    def test_the_layer_takes_what_is_at_hand(self, kind, chunks):
        torch.manual_seed(0)
        labels, x = OF_A_WHOLE[kind](8), torch.randn(2, 8, 12, dtype=F64)
        layer = make(num_labels=labels.num_labels)
        wanted = layer(x, labels=labels, is_causal=True)
        mine, theirs, start = KVCache(), KVCache(), 0
        for size in chunks:
            stop = start + size
            by_hand = labels.rows(start, stop).cols(0, stop)
            got = layer(x[:, start:stop], labels=labels, is_causal=True, cache=mine)
            close(got, wanted[:, start:stop])
            close(layer(x[:, start:stop], labels=by_hand, is_causal=True, cache=theirs), got)
            start = stop

    def test_other_labels_must_fit_as_before(self):
        layer, cache, x = make(), KVCache(), torch.randn(2, 8, 12, dtype=F64)
        layer(x[:, :4], labels=LABELER(8), is_causal=True, cache=cache)
        for labels, error, match in (
            (LABELER(6), ValueError, r"labels must cover \[N_q, N_k\] = \[4, 8\], got \[6, 6\]"),
            (LABELER(8, 9, q_offset=0), ValueError, r"labels must cover \[N_q, N_k\] = \[4, 8\], got \[8, 9\]"),
            (LABELER(8, q_offset=1), ValueError, "labels must be built with q_offset = 4, .* got 5"),
            (torch.zeros(8, 8, dtype=torch.long), ValueError, r"labels must have shape \[N_q, N_k\] = \[4, 8\]"),
            (LABELER(8, ptr=torch.tensor([0, 8])), NotImplementedError, "labels must not be packed with a cache"),
        ):
            with pytest.raises(error, match=match):
                layer(x[:, 4:], labels=labels, is_causal=True, cache=cache)
        assert len(cache) == 4

    def test_labels_towards_a_memory_are_not_cut(self):
        layer, x, memory = make(), torch.randn(2, 3, 12, dtype=F64), torch.randn(2, 3, 12, dtype=F64)
        cache = KVCache(static=True)
        for _ in range(2):
            with pytest.raises(ValueError, match=r"labels must cover \[N_q, N_k\] = \[3, 3\], got \[5, 5\]"):
                layer(x, memory, labels=LABELER(5), cache=cache)
            layer(x, memory, labels=LABELER(3), cache=cache)


def encoder(**options):
    return rg.RelationEncoder(rg.RelationEncoderLayer(12, 3, 16, dtype=F64, **options), 2).eval()


def decoder(**options):
    return rg.RelationDecoder(rg.RelationDecoderLayer(12, 3, 16, dtype=F64, **options), 2).eval()


MEMORY = torch.zeros(2, 4, 12, dtype=F64)
GROWING = {
    "attention": lambda **options: (RelationAttention(12, 3, dtype=F64, **options), KVCache(), (), "is_causal"),
    "encoder layer": lambda **options: (encoder(**options).layers[0], KVCache(), (), "is_causal"),
    "encoder": lambda **options: ((stack := encoder(**options)), stack.new_cache(), (), "is_causal"),
    "decoder layer": lambda **options: (decoder(**options).layers[0], LayerCache(), (MEMORY,), "tgt_is_causal"),
    "decoder": lambda **options: ((stack := decoder(**options)), stack.new_cache(), (MEMORY,), "tgt_is_causal"),
}


@pytest.mark.parametrize("kind", GROWING)
class TestOrder:
    """Rows see no later ones, or the pieces would not give what one pass gives."""

    @pytest.mark.parametrize("chunks", [(6,), (1, 1), (1, 3)])
    @pytest.mark.parametrize("labels", ["by the layer", "of the whole"])
    def test_rows_that_may_see_later_ones_are_refused(self, kind, chunks, labels):
        layer, cache, memory, name = GROWING[kind](labeler=LABELER)
        x, start = torch.randn(2, 6, 12, dtype=F64), 0
        options = {"labels": None if labels == "by the layer" else LABELER(6), "cache": cache, name: False}
        for size in chunks[:-1]:
            layer(x[:, start : start + size], *memory, **options)
            start += size
        match = rf"{name} must be True .* got {chunks[-1]} rows after {start} with {name}=False and DistanceLabels"
        with pytest.raises(ValueError, match=match):
            layer(x[:, start : start + chunks[-1]], *memory, **options)
        assert len(cache) == start

    def test_a_step_of_a_known_form_is_refused_too(self, kind):
        layer, cache, memory, name = GROWING[kind](labeler=LABELER)
        x = torch.randn(2, 1, 12, dtype=F64)
        with torch.no_grad():
            for _ in range(3):
                layer(x, *memory, cache=cache, **{name: True})
            with pytest.raises(ValueError, match=f"{name} must be True .* got 1 rows after 3"):
                layer(x, *memory, cache=cache, **{name: False})

    @pytest.mark.parametrize(
        "labeler",
        [rg.Window(2, 0), rg.ClippedDistance(2) & rg.Window(3, 0), rg.ClippedDistance(2) + rg.Window(4, 0)],
        ids=["window", "restriction", "sum"],
    )
    def test_labels_may_keep_the_order_themselves(self, kind, labeler):
        torch.manual_seed(0)
        layer, cache, memory, name = GROWING[kind](labeler=labeler)
        x = torch.randn(2, 6, 12, dtype=F64)
        whole = layer(x, *memory, **{name: False})
        pieces = [layer(x[:, rows], *memory, cache=cache, **{name: False}) for rows in (slice(0, 3), slice(3, 6))]
        close(torch.cat(pieces, 1), whole)


@pytest.mark.parametrize("window", [(2, 1), (2, 2)])
def test_a_window_that_looks_ahead_keeps_no_order(window):
    layer, x = RelationAttention(12, 3, labeler=rg.Window(*window), dtype=F64), torch.randn(2, 6, 12, dtype=F64)
    with pytest.raises(ValueError, match="is_causal must be True"):
        layer(x, cache=KVCache())


class TestGradients:
    def test_they_are_those_of_one_pass(self):
        layer, x = make(), torch.randn(2, 7, 12, dtype=F64, requires_grad=True)
        leaves = [x, *layer.parameters()]
        whole = layer(x, labels=LABELER(7), is_causal=True)
        weight = torch.randn_like(whole)
        pieces = decode(layer, x, (3, 1, 2, 1), KVCache(16))
        close(*(torch.autograd.grad((z * weight).sum(), leaves) for z in (pieces, whole)))

    def test_rows_written_without_gradients_stay_constant(self):
        layer, x, cache = make(), torch.randn(2, 6, 12, dtype=F64), KVCache()
        with torch.no_grad():
            decode(layer, x[:, :4], (3, 1), cache)
        keys, values = cache.key.clone(), cache.value.clone()
        z = layer(x[:, 4:], labels=LABELER(2, 6, q_offset=4), is_causal=True, cache=cache)
        close(z, layer(x, labels=LABELER(6), is_causal=True)[:, 4:])
        grads = torch.autograd.grad(z.sum(), layer.in_proj_weight)[0]
        other = KVCache()
        other._append(keys, values, None)
        z = layer(x[:, 4:], labels=LABELER(2, 6, q_offset=4), is_causal=True, cache=other)
        close(grads, torch.autograd.grad(z.sum(), layer.in_proj_weight)[0])

    def test_writing_on_without_gradients_does_not_disturb_backward(self):
        layer, x, cache = make(), torch.randn(2, 9, 12, dtype=F64), KVCache()
        z = decode(layer, x[:, :4], (2, 2), cache)
        with torch.no_grad():
            for start in range(4, 8):
                labels = LABELER(1, start + 1, q_offset=start)
                layer(x[:, start : start + 1], labels=labels, is_causal=True, cache=cache)
        wanted = layer(x[:, :4], labels=LABELER(4), is_causal=True)
        close(*(torch.autograd.grad(y.square().sum(), layer.in_proj_weight) for y in (z, wanted)))

    def test_inference_mode_then_not(self):
        layer, x, cache = make(), torch.randn(2, 8, 12, dtype=F64), KVCache(16)
        parts = []
        for index, mode in enumerate((torch.inference_mode, torch.no_grad, torch.inference_mode, torch.enable_grad)):
            rows = slice(2 * index, 2 * index + 2)
            with mode():
                labels = LABELER(2, rows.stop, q_offset=rows.start)
                parts.append(layer(x[:, rows], labels=labels, is_causal=True, cache=cache).clone())
        close(torch.cat([part.detach() for part in parts], 1), layer(x, labels=LABELER(8), is_causal=True).detach())


class TestStorage:
    def test_a_fixed_room_is_made_once(self):
        cache, row = KVCache(5), torch.zeros(1, 1, 1, 2)
        with torch.no_grad():
            cache._append(row, row, None)
            place = cache._key.data_ptr()
            for _ in range(4):
                cache._append(row, row, None)
            assert cache._key.data_ptr() == place
            with pytest.raises(ValueError, match=r"cache must hold at most max_len = 5 keys, got 5 \+ 1"):
                cache._check_room(1, 1)
        assert len(cache) == 5

    def test_reorder_follows_the_beams(self):
        layer, x = make(), torch.randn(3, 5, 12, dtype=F64)
        padding = torch.tensor([[True, False], [False, False], [False, False]])
        cache, index = KVCache(), torch.tensor([1, 1, 0, 2], dtype=torch.int32)
        with torch.no_grad():
            decode(layer, x[:, :2], (2,), cache, padding=padding)
            cache.reorder(index)
            step = torch.randn(4, 1, 12, dtype=F64)
            got = layer(step, labels=LABELER(1, 3, q_offset=2), is_causal=True, cache=cache)
            mask = torch.cat([padding[index], torch.zeros(4, 1, dtype=torch.bool)], 1)
            whole = torch.cat([x[index, :2], step], 1)
            wanted = layer(whole, labels=LABELER(3), is_causal=True, key_padding_mask=mask)
        close(got, wanted[:, 2:])

    @pytest.mark.parametrize("clone", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
    def test_copies_go_their_own_way(self, clone):
        layer, x, cache = make(), torch.randn(2, 5, 12, dtype=F64), KVCache(8)
        with torch.no_grad():
            decode(layer, x[:, :3], (3,), cache)
            other = clone(cache)
            options = {"labels": LABELER(2, 5, q_offset=3), "is_causal": True}
            close(layer(x[:, 3:], cache=other, **options), layer(x[:, 3:], cache=cache, **options))
            close(other.key, cache.key)

    def test_repr(self):
        assert repr(KVCache()) == "KVCache(0 keys)"
        assert repr(KVCache(8, static=True)) == "KVCache(0 keys, static, max_len=8)"
        assert repr(LayerCache()) == "LayerCache(KVCache(0 keys), KVCache(0 keys, static))"
        assert repr(StackCache(KVCache(), KVCache())) == "StackCache(2 layers, 0 keys)"

    def test_compiled_steps_of_a_stack(self):
        torch.manual_seed(0)
        layer = fill_tables(encoder_layer(12, 3, 20, labeler=LABELER, dtype=F64, impl="dense")).eval()
        stack, counter = RelationEncoder(layer, 2), CompileCounterWithBackend("eager")

        @torch.no_grad()
        def step(x, cache):
            return stack(x, is_causal=True, cache=cache)

        compiled = torch.compile(step, backend=counter, fullgraph=True)
        mine, theirs = stack.new_cache(16), stack.new_cache(16)
        for _ in range(4):
            x = torch.randn(2, 1, 12, dtype=F64)
            close(compiled(x, mine), step(x, theirs))
        assert counter.frame_count <= 3


class TestStatic:
    def test_a_memory_is_projected_once(self, monkeypatch):
        layer = make(num_labels=None, tables=(), kdim=5, vdim=5)
        memory, x = torch.randn(2, 6, 5, dtype=F64), torch.randn(2, 4, 12, dtype=F64)
        padding = torch.rand(2, 6) > 0.6
        wanted = layer(x, memory, key_padding_mask=padding)
        cache = KVCache(static=True)
        first = layer(x[:, :1], memory, key_padding_mask=padding, cache=cache)
        seen = []
        monkeypatch.setattr("relgraph.nn.projections.linear", lambda x, w, b: seen.append(x) or x @ w.T + b)
        second = layer(x[:, 1:2], memory, cache=cache)
        third = layer(x[:, 2:], cache=cache)
        close(torch.cat([first, second, third], 1), wanted)
        assert len(seen) == 2
        assert len(cache) == 6

    def test_a_new_mask_takes_the_place_of_the_old(self):
        layer, cache = make(num_labels=None, tables=()), KVCache(static=True)
        memory, x = torch.randn(2, 6, 12, dtype=F64), torch.randn(2, 4, 12, dtype=F64)
        padding = torch.rand(2, 6) > 0.6
        layer(x, memory, cache=cache)
        close(layer(x, cache=cache, key_padding_mask=padding), layer(x, memory, key_padding_mask=padding))
        close(layer(x, cache=cache), layer(x, memory))


class TestGroups:
    def test_all_layers_move_together(self):
        cache = StackCache(LayerCache(4), LayerCache(4))
        for layer in cache:
            for one in (layer.self_attn, layer.multihead_attn):
                one._append(torch.arange(2.0).view(2, 1, 1, 1), torch.zeros(2, 1, 1, 1), None)
        assert len(cache) == len(cache.layers[0]) == 1
        cache.reorder(torch.tensor([1, 0, 1]))
        assert all(c.key.flatten().tolist() == [1, 0, 1] for layer in cache for c in vars(layer).values())
        cache.reset()
        assert [len(c) for layer in cache for c in vars(layer).values()] == [0, 0, 0, 0]
        assert len(StackCache()) == 0
