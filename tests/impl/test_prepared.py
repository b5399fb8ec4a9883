"""Calls of a form that came before, which skip the checks, the rule and most of the work around the kernels."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import relgraph as rg
from relgraph.impl.native import build
from relgraph.impl.native.prepared import Prepared, _AllPairs
from relgraph.labels import DenseLabels, DistanceLabels, EdgeLabels
from tests.cases import F64
from tests.nn.helpers import some_edges

pytestmark = pytest.mark.skipif(build.missing() is not None, reason=f"no compiled kernels: {build.missing()}")


@pytest.fixture
def answered(monkeypatch):
    """The calls that were answered by what they or earlier ones prepared."""
    calls, answer = [], Prepared.answer

    def counted(self, *args):
        calls.append(self)
        return answer(self, *args)

    monkeypatch.setattr(Prepared, "answer", counted)
    return calls


def labels_of(kind, n):
    ptr = torch.tensor([0, n // 3, n]) if kind == "packed" else None
    if kind == "written out":
        return DenseLabels(torch.arange(n * n).view(n, n) % 10 - 1, 9)
    return rg.ClippedDistance(4)(n, ptr=ptr)


LAYOUTS = {
    "a batch": {},
    "heads inside, a key mask, one key head": {"inside": True, "mask": "bool", "kv_heads": 1, "per_head": True},
    "no key table, a floating mask, biases": {"mask": "float", "kinds": "vb", "causal": True},
    "all tables": {"kinds": "kvb", "kv_heads": 2, "causal": True},
}


@pytest.mark.parametrize("kind", ["distance", "packed", "written out"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", [5, 70])
def test_values_and_gradients(kind, layout, n, answered):
    """Calls are prepared, with gradients and without them, and equal the reference."""
    how = {"inside": False, "mask": None, "kv_heads": 4, "per_head": False, "kinds": "kv", "causal": False}
    how |= LAYOUTS[layout]
    labels, packed = labels_of(kind, n), kind == "packed"

    def new(heads, size):
        shape = (n, heads, size) if packed else (2, n, heads, size) if how["inside"] else (2, heads, n, size)
        x = torch.randn(shape, dtype=F64)
        return (x.transpose(1, 2) if how["inside"] and not packed else x).requires_grad_()

    def table(*size):
        shape = (4, 9, *size) if how["per_head"] else (9, *size)
        # transposed, as those of a Hugging Face model are
        return torch.randn(shape[::-1], dtype=F64).permute(*reversed(range(len(shape)))).requires_grad_()

    inputs = [new(4, 8), new(how["kv_heads"], 8), new(how["kv_heads"], 6)]
    sizes = {"k": (8,), "v": (6,), "b": ()}
    names = {"k": "key_table", "v": "value_table", "b": "bias_table"}
    tables = {names[kind]: table(*sizes[kind]) for kind in how["kinds"]}
    options = {"is_causal": how["causal"], "enable_gqa": how["kv_heads"] != 4}
    if how["mask"] == "bool":
        options["attn_mask"] = torch.rand(n, n) > 0.3 if packed else torch.rand(2, 1, 1, n) > 0.3
    if how["mask"] == "float":
        options["attn_mask"] = torch.randn(n, n, dtype=F64)
    leaves = [*inputs, *tables.values()]

    def run(impl):
        output = rg.relation_attention(*inputs, labels, **tables, **options, impl=impl)
        weighted = output * torch.linspace(0, 1, output.numel(), dtype=F64).view(output.shape)
        return [output, *torch.autograd.grad(weighted.sum(), leaves)]

    truth, _, again = run("reference"), run("native"), run("native")
    shared = "b" in how["kinds"] and "k" not in how["kinds"] and not packed  # biases alone are written out in a batch
    assert len(answered) == (0 if shared else 2)
    for mine, theirs in zip(again, truth, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-12)
    with torch.no_grad():
        for _ in range(2):
            output = rg.relation_attention(*inputs, labels, **tables, **options, impl="native")
            torch.testing.assert_close(output, truth[0], atol=1e-12, rtol=1e-12)
    assert len(answered) == (0 if shared else 4)


def test_gradients_that_a_prepared_backward_does_not_take(monkeypatch):
    """It takes that of the output, and of the log-sum-exp beside it, without derivatives; others are computed as in other calls, to the same values."""
    taken, backward = [], _AllPairs.backward

    def noted(*args):
        found = backward(*args)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(_AllPairs, "backward", noted)
    labels = rg.ClippedDistance(2)(6)
    inputs = [torch.randn(2, 2, 6, 4, dtype=F64, requires_grad=True) for _ in range(3)]
    inputs += [torch.randn(5, 4, dtype=F64, requires_grad=True) for _ in range(2)]

    def run(impl, *, of=("output",), again=False):
        output, aux = rg.relation_attention_with_aux(*inputs[:3], labels, *inputs[3:], need_lse=True, impl=impl)
        parts = {"output": output.sin().sum(), "lse": aux.lse.cos().sum()}
        loss = sum(parts[name] for name in of)
        grads = torch.autograd.grad(loss, inputs, create_graph=again, materialize_grads=True)
        return torch.autograd.grad(sum(x.square().sum() for x in grads), inputs) if again else grads

    run("native")
    # the second derivative takes gradients that nothing follows any more
    cases = ({}, True), ({"of": ("output", "lse")}, True), ({"of": ("lse",)}, False), ({"again": True}, True)
    for options, prepared in cases:
        taken.clear()
        torch.testing.assert_close(run("native", **options), run("reference", **options), atol=1e-11, rtol=1e-11)
        assert taken == [prepared]


EDGES = {
    "nodes, tables of all heads": {},
    "nodes, a table per head, one key head": {"per_head": True, "kv_heads": 1, "kinds": "kvq"},
    "nodes, gates, one key head": {"kv_heads": 1, "kinds": "kvqKV"},
    "nodes, a gate of keys per head, two threads": {"per_head": True, "kinds": "K", "threads": 2},
    "nodes, values only, two threads": {"kinds": "v", "threads": 2},
    "a batch, a mirrored layout": {"batch": 2, "per_head": True},
    "a batch of own edges, two threads": {"batch": 2, "own": True, "kinds": "kvqV", "threads": 2},
}


@pytest.mark.parametrize("layout", EDGES)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_listed_pairs(layout, dropout, answered, threads):
    """Values, gradients and second derivatives of a prepared call equal those of a call that is not."""
    how = {"per_head": False, "kv_heads": 4, "kinds": "kv", "batch": None, "own": False, "threads": 1} | EDGES[layout]
    torch.manual_seed(len(layout))
    queries, keys, count, batch = 30, 40, 9000 if how["threads"] == 2 else 70, how["batch"]
    index = torch.stack([torch.randint(0, keys, (count,)), torch.randint(0, queries, (count,))])
    ids = torch.randint(-1, 5, (count,))
    rows = {"batch": torch.arange(count) % 2, "batch_size": 2} if how["own"] else {}
    labels = rg.EdgeLabels(index, ids, 5, q_len=queries, k_len=keys, **rows)

    def new(length, heads, size):
        x = torch.randn(*(() if batch is None else (batch,)), length, heads, size, dtype=F64)
        return (x if batch is None else x.transpose(1, 2)).requires_grad_()

    leaves = [new(queries, 4, 8), new(keys, how["kv_heads"], 8), new(keys, how["kv_heads"], 6)]
    inputs, tables = list(leaves), {}
    sizes = {"key_table": 8, "value_table": 6, "query_table": 8, "key_gate": 8, "value_gate": 6}
    for kind, (name, size) in zip("kvqKV", sizes.items(), strict=True):
        if kind in how["kinds"]:
            heads = (4,) if how["per_head"] else ()
            tables[name] = torch.randn(*heads, 5, size, dtype=F64, requires_grad=True)
            leaves.append(tables[name])
    attend = rg.edge_attention if batch is None else rg.relation_attention
    seen = torch.ones(1, 1, 1, keys, dtype=torch.bool)  # a mask of no effect keeps a call from being prepared
    unprepared = {"score": rg.score.LeakyReLU(1.0)} if batch is None else {"attn_mask": seen}

    def run(**options):
        torch.manual_seed(7)
        output = attend(*inputs, labels, **tables, dropout_p=dropout, enable_gqa=True, **options)
        weighted = (output * torch.linspace(0, 1, output.numel(), dtype=F64).view(output.shape)).square().sum()
        first = torch.autograd.grad(weighted, leaves, create_graph=count < 100)
        return [output, *first, *(torch.autograd.grad(first[0].square().sum(), leaves) if count < 100 else ())]

    threads(how["threads"])
    truth = run(impl="native" if dropout else "reference" if batch else "edges", **(unprepared if dropout else {}))
    assert not answered
    for _ in range(2):
        found = run(impl="native")
    assert len(answered) == 2
    for mine, theirs in zip(found, truth, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=1e-10)


def sliced(shape, axis=-1):
    wide = list(shape)
    wide[axis] += 3
    return torch.randn(wide, dtype=F64).narrow(axis, 1, shape[axis])


STRIDES = {
    "contiguous": lambda shape: torch.randn(shape, dtype=F64),
    "transposed": lambda shape: torch.randn(shape, dtype=F64).transpose(0, 1).contiguous().transpose(0, 1),
    "transposed rows": lambda shape: torch.randn(shape, dtype=F64).mT.contiguous().mT,
    "expanded": lambda shape: torch.randn(1, *shape[1:], dtype=F64).expand(shape),
    "expanded rows": lambda shape: torch.randn(*shape[:-2], 1, shape[-1], dtype=F64).expand(shape),
    "sliced": sliced,
    "sliced rows": lambda shape: sliced(shape, -2),
    "every other number": lambda shape: torch.randn(*shape, 2, dtype=F64)[..., 0],
}
"""Tensors of one shape in other layouts."""

FUNCTIONS = {
    "all pairs": (rg.relation_attention, (2, 4, 7), lambda: rg.ClippedDistance(4)(7), "reference"),
    "packed": (
        rg.relation_attention,
        (7, 4),
        lambda: rg.ClippedDistance(4)(7, ptr=torch.tensor([0, 3, 7])),
        "reference",
    ),
    "edges of a batch": (rg.relation_attention, (2, 4, 7), lambda: some_edges(7, 9, None), "reference"),
    "edges of nodes": (rg.edge_attention, (7, 4), lambda: some_edges(7, 9, None), "edges"),
}


@pytest.mark.parametrize("changed", ["query", "key", "value", "key_table", "value_table", "all"])
@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("grad", [True, False])
def test_one_labels_object_takes_tensors_of_any_strides(changed, kind, grad, answered):
    """What a call prepares is not for a tensor of the same shape that lies in another way."""
    torch.manual_seed(0)
    attend, shape, make, plain = FUNCTIONS[kind]
    labels = make()
    shapes = dict.fromkeys(("query", "key", "value"), (*shape, 8)) | dict.fromkeys(("key_table", "value_table"), (9, 8))

    def run(tensors, impl):
        with torch.set_grad_enabled(grad):
            output = attend(**tensors, labels=labels, impl=impl)
            if not grad:
                return [output]
            weighted = output * torch.linspace(0, 1, output.numel(), dtype=F64).view(output.shape)
            return [output, *torch.autograd.grad(weighted.sum(), [*tensors.values()])]

    for _ in range(2):
        for layout in STRIDES.values():
            tensors = {
                name: (layout if changed in (name, "all") else STRIDES["contiguous"])(size).requires_grad_(grad)
                for name, size in shapes.items()
            }
            torch.testing.assert_close(run(tensors, "native"), run(tensors, plain), atol=1e-12, rtol=1e-12)
    assert len(answered) >= 8  # contiguous ones, transposed ones and slices, twice


@pytest.mark.parametrize("labeler", [rg.ClippedDistance(4), None])
@pytest.mark.parametrize("changed", ["query", "key", "value", "attn_mask", "all"])
def test_steps_of_decoding_take_keys_of_any_strides(changed, labeler, monkeypatch):
    steps, answer = [], _AllPairs.answer_step
    monkeypatch.setattr(_AllPairs, "answer_step", lambda *args: steps.append(args) or answer(*args))
    torch.manual_seed(0)
    tables = {} if labeler is None else {"key_table": torch.randn(9, 8, dtype=F64)}
    with torch.no_grad():
        for keys in (5, 6, 9, 6):
            for layout in STRIDES.values():
                like = lambda name, *shape, layout=layout: (  # noqa: E731
                    layout if changed in (name, "all") else STRIDES["contiguous"]
                )(shape)
                tensors = {"query": like("query", 2, 4, 1, 8)}
                tensors |= {name: like(name, 2, 4, keys, 8) for name in ("key", "value")}
                tensors["attn_mask"] = like("attn_mask", 2, 1, 1, keys)
                labels = None if labeler is None else labeler(1, keys, q_offset=keys - 1)
                options = {"is_causal": True, "q_offset": keys - 1, **tables}
                found, wanted = (
                    rg.relation_attention(**tensors, labels=labels, impl=impl, **options)
                    for impl in ("native", "reference")
                )
                torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)
    assert len(steps) >= 16


def test_caches_of_other_room_lie_in_other_ways():
    torch.manual_seed(0)
    layer = rg.RelationAttention(12, 3, labeler=rg.ClippedDistance(4), impl="native", dtype=F64).eval()
    x = torch.randn(2, 12, 12, dtype=F64)
    with torch.no_grad():
        caches = [rg.KVCache(room) for room in (None, 12, 40)]
        found = [
            [layer(x[:, at : at + 1], is_causal=True, cache=cache) for cache in caches]  # by turns
            for at in range(12)
        ]
        layer.impl = "reference"
        wanted = layer(x, is_causal=True)
    for outputs in zip(*found, strict=True):
        torch.testing.assert_close(torch.cat(outputs, 1), wanted, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("changed", ["lin_query", "lin_key", "lin_value", "tables.key", "tables.value"])
def test_a_graph_layer_takes_projections_of_any_strides(changed, answered):
    """A projection may be a part of one that is made jointly, and rows of a table may come from elsewhere."""
    torch.manual_seed(0)
    conv = rg.pyg.RelationConv(6, 8, heads=4, num_relations=9, impl="native").double()
    labels, x = some_edges(7, 9, None), torch.randn(7, 6, dtype=F64, requires_grad=True)
    widths = [lambda y: y, lambda y: torch.cat([y, y], -1)[..., : y.shape[-1]], lambda y: y.mean(0).expand_as(y)]
    for lay in widths * 2:
        hook = conv.get_submodule(changed).register_forward_hook(lambda module, args, y, lay=lay: lay(y))
        results = []
        for impl in ("native", "edges"):
            conv.impl = impl
            z = conv(x, labels)
            results.append([z, *torch.autograd.grad(z.square().sum(), [x, *conv.parameters()])])
        hook.remove()
        torch.testing.assert_close(*results, atol=1e-11, rtol=1e-11)
    assert len(answered) == 6


def call(labels, *, size=4, dtype=torch.float32, q_len=6, k_len=6, table=None, **options):
    query, key = torch.randn(1, 2, q_len, size, dtype=dtype), torch.randn(1, 2, k_len, size, dtype=dtype)
    table = torch.randn(5, 4) if table is None else table
    return rg.relation_attention(query, key, key, labels, table, impl="native", **options)


def test_a_call_of_another_form_is_checked_again(answered):
    labels = rg.ClippedDistance(2)(6)
    for _ in range(2):
        call(labels)
    assert len(answered) == 2
    with pytest.raises(ValueError, match="key_table must have shape"):
        call(labels, table=torch.randn(6, 4))
    with pytest.raises(ValueError, match="key_table must have the dtype of query"):
        call(labels, dtype=F64)
    with pytest.raises(TypeError, match="scale must be"):
        call(labels, scale=True)
    with pytest.raises(ValueError, match="labels must cover"):
        call(labels, k_len=7)
    with pytest.raises(TypeError, match="is_causal must be"):
        call(labels, is_causal=1)
    assert len(answered) == 2


def test_labels_without_an_offset_do_not_take_that_of_others(answered):
    """Both have the same plan; only one says where its first query is."""
    with_offset = DistanceLabels(3, 6, lookup=range(5), left=2, q_offset=0)
    call(with_offset, q_len=3, is_causal=True)
    assert len(answered) == 1
    with pytest.raises(ValueError, match="q_offset must be given with is_causal"):
        call(DistanceLabels(3, 6, lookup=range(5), left=2), q_len=3, is_causal=True)


def test_what_watches_or_changes_operators_is_served_by_them(answered, monkeypatch):
    labels, x, table = rg.ClippedDistance(2)(6), torch.randn(1, 2, 6, 4), torch.randn(5, 4)
    for _ in range(2):
        found = rg.relation_attention(x, x, x, labels, table)
    count = len(answered)
    with torch.autocast("cpu", torch.bfloat16):
        assert rg.relation_attention(x, x, x, labels, table).dtype == torch.bfloat16
    mapped = torch.func.vmap(lambda q: rg.relation_attention(q, x, x, labels, table, impl="dense"))(x[None])
    torch.testing.assert_close(mapped[0], found)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(NotImplementedError, match="forward-mode derivatives need"):
            rg.relation_attention(dual, x, x, labels, table)
    assert len(answered) == count

    def parts_only():
        """Stands for the function that context_parallel puts in place of torch's."""

    parts_only.__module__ = "torch.distributed.tensor"
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", parts_only)
    with pytest.raises(NotImplementedError, match="within torch's context_parallel"):
        rg.relation_attention(x, x, x, labels, table)


def test_calls_with_other_tensors_are_not_prepared(answered):
    """Biases of queries change the query, and terms that the kernels do not take are made of tables in torch."""
    labels, x, table = rg.ClippedDistance(2)(6), torch.randn(1, 2, 6, 4, requires_grad=True), torch.randn(5, 4)
    others = {"content_bias": torch.randn(2, 4), "query_table": table, "row_scores": torch.randn(1, 2, 6, 5)}
    for name, other in others.items():
        key_table = None if name == "row_scores" else table
        found = [rg.relation_attention(x, x, x, labels, key_table, **{name: other}, impl=impl)
                 for impl in ("native", "native", "reference")]  # fmt: skip
        torch.testing.assert_close(found[1], found[2])
    assert not answered


def test_it_holds_no_tensor_of_the_call():
    labels, x = rg.ClippedDistance(2)(6), torch.randn(1, 2, 6, 4, requires_grad=True)
    for _ in range(2):
        rg.relation_attention(x, x, x, labels, torch.randn(5, 4), impl="native").sum().backward()
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("kind", ["distance", "packed", "listed"])
def test_saved_tensors_may_come_back_with_another_layout(kind, answered):
    """Hooks that offload them give dense ones; the struct of the form would step through these wrongly."""
    if kind == "listed":
        pairs = torch.randint(6, (2, 12))
        labels = EdgeLabels(pairs, torch.randint(9, (12,)), 9, q_len=6)
    else:
        labels = labels_of(kind, 6)
    shape = (6, 2, 4) if kind == "packed" else (1, 6, 2, 4)

    def grads(watch):
        torch.manual_seed(1)
        inputs = [torch.randn(shape, dtype=F64, requires_grad=True) for _ in range(3)]
        table = torch.randn(9, 4, dtype=F64, requires_grad=True)
        with watch:
            turned = [
                x.transpose(0, 1).contiguous().transpose(0, 1) if kind == "packed" else x.transpose(1, 2)
                for x in inputs
            ]
            out = rg.relation_attention(*turned, labels, table, table, impl="native")
        return torch.autograd.grad(out.square().sum(), [*inputs, table])

    wanted = grads(contextlib.nullcontext())
    for _ in range(2):
        offloaded = torch.autograd.graph.saved_tensors_hooks(lambda x: x.detach().numpy().copy(), torch.from_numpy)
        torch.testing.assert_close(grads(offloaded), wanted)
    assert len(answered) == 3


@pytest.mark.parametrize("options", [{}, {"score": rg.score.Softcap(2.0)}], ids=["prepared", "not prepared"])
def test_saved_outputs_may_come_back_turned(options):
    labels = labels_of("distance", 6)
    x, table = torch.randn(2, 2, 6, 4, dtype=F64, requires_grad=True), torch.randn(9, 4, dtype=F64, requires_grad=True)

    def grads(watch):
        with watch:
            out = rg.relation_attention(x, x, x, labels, table, table, impl="native", **options)
        return torch.autograd.grad(out.square().sum(), [x, table])

    turned = torch.autograd.graph.saved_tensors_hooks(lambda y: y.detach().mT.contiguous().mT, lambda y: y)
    torch.testing.assert_close(grads(turned), grads(contextlib.nullcontext()))


def test_a_call_that_is_computed_again_saves_what_it_saved():
    """Checkpointing compares the layouts of saved tensors with those of the first call, which prepared this one."""
    labels, x = labels_of("packed", 6), torch.randn(6, 2, 4, requires_grad=True)
    table = torch.randn(9, 4)

    def attend(x):
        return rg.relation_attention(x, x, x, labels, table, table, impl="native")

    found = torch.autograd.grad(checkpoint(attend, x, use_reentrant=False).square().sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(attend(x).square().sum(), x))
