"""Recording what attention layers attend to, inside any model."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import relgraph as rg
from tests.layers import decoder_layer, encoder_layer, transformer

LABELER = rg.ClippedDistance(2)


def encoder(layers=2, **options):
    torch.manual_seed(0)
    layer = encoder_layer(16, 4, 32, dropout=0.0, labeler=LABELER, **options)
    return rg.RelationEncoder(layer, layers)


def x(length=6):
    return torch.randn(2, length, 16, generator=torch.Generator().manual_seed(1))


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def by_hand(model, x):
    """Yield weights and masses of each layer of an encoder."""
    for layer in model.layers:
        _, weights, mass = layer.self_attn(x, labels=LABELER(x.shape[1]), need_weights=True, need_label_mass=True)
        yield weights, mass
        x = layer(x)


def test_an_encoder_reports_what_its_layers_give_by_hand():
    model = encoder()
    wanted = list(by_hand(model, x()))
    with rg.record_attention(model, weights=True) as record:
        model(x())
    assert list(record) == ["layers.0.self_attn", "layers.1.self_attn"]
    for (weights, mass), (call,) in zip(wanted, record.values(), strict=True):
        torch.testing.assert_close(call.weights, weights.detach())
        torch.testing.assert_close(call.label_mass, mass.detach())
        assert call.lse is None
        assert not call.weights.requires_grad and not call.label_mass.requires_grad


@pytest.mark.parametrize("norm_first", [True, False])
def test_output_and_gradients_are_those_without(norm_first):
    model = encoder(norm_first=norm_first)
    results = []
    for recorded in (False, True):
        model.zero_grad()
        if recorded:
            with rg.record_attention(model):
                z = model(x())
        else:
            z = model(x())
        z.square().sum().backward()
        results.append([z.detach(), *(p.grad.clone() for p in model.parameters())])
    for alone, beside in zip(*results, strict=True):
        assert torch.equal(alone, beside)


def test_a_caller_gets_what_it_asks_for_and_no_more():
    layer = rg.RelationAttention(16, 4, num_labels=5)
    labels = LABELER(6)
    plain = layer(x(), labels=labels)
    weights = layer(x(), labels=labels, need_weights=True)
    both = layer(x(), labels=labels, need_weights=True, need_label_mass=True)
    for mass, wanted in ((True, False), (False, True), (True, True)):
        with rg.record_attention(layer, label_mass=mass, weights=wanted) as record:
            torch.testing.assert_close(layer(x(), labels=labels), plain)  # weights take another implementation
            for got, asked in zip(layer(x(), labels=labels, need_weights=True), weights, strict=True):
                assert torch.equal(got, asked)
            got = layer(x(), labels=labels, need_weights=True, need_label_mass=True)
            assert len(got) == 3 and all(torch.equal(a, b) for a, b in zip(got, both, strict=True))
        assert list(record) == [""] and len(record[""]) == 3
        assert all((call.weights is not None) == wanted for call in record[""])


def test_blocks_may_nest_overlap_and_come_again():
    model = encoder(1)
    name = "layers.0.self_attn"
    plain = model(x())
    with rg.record_attention(model, weights=True) as outer:
        with rg.record_attention(model) as inner:
            torch.testing.assert_close(model(x()), plain)
        model(x())
    assert [call.weights is not None for call in outer[name]] == [True, True]
    assert [call.weights is None for call in inner[name]] == [True]
    assert torch.equal(outer[name][0].label_mass, inner[name][0].label_mass)

    first, second = rg.record_attention(model), rg.record_attention(model, label_mass=False, weights=True)
    one, two = first.__enter__(), second.__enter__()
    model(x())
    first.__exit__(None, None, None)
    model(x())
    second.__exit__(None, None, None)
    assert len(one[name]) == 1 and len(two[name]) == 2
    assert hooks(model) == 0
    assert torch.equal(model(x()), plain)


def test_nothing_is_left_after_an_exception():
    model = encoder()
    with pytest.raises(ValueError, match="src must have shape"), rg.record_attention(model) as record:  # noqa: PT012
        model(x())
        model(x()[None])
    assert hooks(model) == 0
    assert [len(calls) for calls in record.values()] == [1, 1]


def test_a_call_that_raised_is_not_recorded():
    layer = rg.RelationAttention(16, 4, num_labels=5)
    with rg.record_attention(layer) as record:
        with pytest.raises(ValueError, match="labels must cover"):
            layer(x(), labels=LABELER(5))
        layer(x(), labels=LABELER(6))
        with pytest.raises(TypeError, match="need_weights must be a bool, got NoneType"):
            layer(x(), labels=LABELER(6), need_weights=None)
    assert len(record[""]) == 1


def test_decoders_report_both_attentions():
    layer = decoder_layer(16, 4, 32, dropout=0.0, labeler=LABELER)
    model = rg.RelationDecoder(layer, 1)
    with rg.record_attention(model, weights=True) as record:
        model(x(4), x(6), tgt_is_causal=True)
    assert list(record) == ["layers.0.self_attn", "layers.0.multihead_attn"]
    (own,), (across,) = record.values()
    assert own.weights.shape == (2, 4, 4, 4) and own.label_mass.shape == (2, 4, 4, 5)
    assert across.weights.shape == (2, 4, 4, 6) and across.label_mass is None
    assert float(own.weights.triu(1).sum()) == 0.0


def test_a_transformer_reports_each_step_of_decoding():
    model = transformer(16, 4, 1, 1, 32, labeler=rg.ClippedDistance(2)).eval()
    with rg.record_attention(model) as record:
        memory, cache = model.encode(x(5)), model.new_cache()
        steps = [model.decode(x(3)[:, i : i + 1], memory, cache=cache) for i in range(3)]
    torch.testing.assert_close(torch.cat(steps, 1), model(x(5), x(3)))
    assert {name: [call.label_mass is not None for call in calls] for name, calls in record.items()} == {
        "encoder.layers.0.self_attn": [True],
        "decoder.layers.0.self_attn": [True] * 3,
        "decoder.layers.0.multihead_attn": [False] * 3,
    }


class Mine(nn.Module):
    """A model with one layer used twice, and one that is never called."""

    def __init__(self):
        super().__init__()
        self.attend = rg.RelationAttention(16, 4, num_labels=5)
        self.idle = rg.RelationAttention(16, 4, tables=())

    def forward(self, x):
        labels = LABELER(x.shape[1])
        return self.attend(self.attend(x, labels=labels), labels=labels)


def test_a_compiled_model_reports_too():
    model = Mine()
    compiled = torch.compile(model, backend="eager")
    plain = compiled(x())
    with rg.record_attention(compiled) as record:
        torch.testing.assert_close(compiled(x()), plain)
    compiled(x())
    assert [len(calls) for calls in record.values()] == [2, 0]


def test_compilation_goes_on_after_blocks_that_overlap():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(nn.Linear(16, 16), backend=backend)
    blocks = [rg.record_attention(Mine()) for _ in range(2)]
    for block in blocks:
        block.__enter__()
    for block in blocks:
        compiled(x())
        assert graphs == []
        block.__exit__(None, None, None)
    compiled(x())
    assert len(graphs) == 1


def in_threads(model, inputs, *, own):
    """Run all inputs at the same time in threads; with ``own``, each thread records."""
    together = threading.Barrier(len(inputs), timeout=20)

    def wait(*_):
        together.wait()

    waiting = model.out_proj.register_forward_pre_hook(wait)

    def call(x):
        if not own:
            return model(x, labels=LABELER(x.shape[1])), None
        with rg.record_attention(model) as record:
            z = model(x, labels=LABELER(x.shape[1]))
            wait()  # while all blocks are open
        return z, record

    try:
        with ThreadPoolExecutor(len(inputs)) as pool:
            return list(pool.map(call, inputs))
    finally:
        waiting.remove()


def test_threads_that_each_record_find_their_own_calls():
    layer, inputs = rg.RelationAttention(16, 4, num_labels=5), [x(n) for n in (3, 4, 5)]
    for (z, record), given in zip(in_threads(layer, inputs, own=True), inputs, strict=True):
        wanted, mass = layer(given, labels=LABELER(given.shape[1]), need_label_mass=True)
        torch.testing.assert_close(z, wanted)
        ((call,),) = record.values()
        torch.testing.assert_close(call.label_mass, mass.detach())
    assert not layer._forward_hooks and not layer._forward_pre_hooks


def test_one_block_records_a_pool_of_threads():
    layer, inputs = rg.RelationAttention(16, 4, num_labels=5), [x(n) for n in (3, 4, 5)]
    with rg.record_attention(layer) as record:
        outputs = in_threads(layer, inputs, own=False)
    for (z, _), given in zip(outputs, inputs, strict=True):
        torch.testing.assert_close(z, layer(given, labels=LABELER(given.shape[1])))
    assert sorted(call.label_mass.shape[2] for call in record[""]) == [3, 4, 5]


def test_a_call_that_is_under_way_when_a_block_begins_is_left_alone():
    layer = rg.RelationAttention(16, 4, num_labels=5)
    blocks = []

    def begin(*_):
        blocks.append(rg.record_attention(layer))
        record = blocks[0].__enter__()
        blocks.append(record)

    beginning = layer.out_proj.register_forward_pre_hook(begin)
    z = layer(x(4), labels=LABELER(4))
    beginning.remove()
    block, record = blocks
    block.__exit__(None, None, None)
    assert isinstance(z, torch.Tensor) and record == {"": []}


def test_chunked_gives_masses_and_refuses_weights():
    model = encoder(1, impl="chunked")
    wanted = [mass.detach() for _, mass in by_hand(encoder(1), x())]
    with rg.record_attention(model) as record:
        model(x())
    torch.testing.assert_close(record["layers.0.self_attn"][0].label_mass, wanted[0])
    with (
        pytest.raises(NotImplementedError, match="impl='chunked' never holds all attention weights"),
        rg.record_attention(model, weights=True),
    ):
        model(x())
