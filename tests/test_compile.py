"""torch.compile without graph breaks and with few recompilations, torch.export, and opcheck of the custom ops."""

from __future__ import annotations

import os
import shutil
from functools import partial

import pytest
import torch
import torch._dynamo as dynamo
from torch._dynamo.utils import counters

import relgraph as rg
from relgraph.impl import op
from relgraph.labels import DenseLabels, EdgeLabels, SumLabels
from relgraph.plan import encode, lower
from tests.cases import F64, KINDS, distance, make
from tests.layers import encoder_layer

IMPLS = ["reference", "dense", "chunked", "native", None]


@pytest.fixture(autouse=True)
def _fresh():
    dynamo.reset()
    counters.clear()
    yield
    dynamo.reset()


def inputs(n, heads=2, size=4):
    return [torch.randn(2, heads, n, size, dtype=F64, requires_grad=True) for _ in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("impl", IMPLS)
def test_labels_built_inside_over_changing_lengths(impl):
    """Two graphs serve every length: one fixed, one dynamic."""
    tables = [torch.randn(5, 4, dtype=F64, requires_grad=True) for _ in range(2)]

    def fn(q, k, v):
        z, aux = rg.relation_attention_with_aux(
            q, k, v, distance(q.shape[2]), *tables, is_causal=True, need_label_mass=True, impl=impl
        )
        return z.square().sum() + aux.label_mass.sin().sum()

    compiled = torch.compile(fn, fullgraph=True, backend="aot_eager")
    for n in (5, 6, 9, 13, 30):
        leaves = inputs(n)
        wanted = torch.autograd.grad(fn(*leaves), [*leaves, *tables])
        got = torch.autograd.grad(compiled(*leaves), [*leaves, *tables])
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)
    assert counters["stats"]["unique_graphs"] <= 2
    assert not counters["graph_break"]


def dense(n):
    return DenseLabels(torch.randint(0, 5, (n, n)), 5)


def graph(n):
    return rg.Graph(torch.stack([torch.arange(n - 1), torch.arange(1, n)]), n, edge_type=torch.arange(n - 1) % 2)


GIVEN = {
    "dense": dense,
    "edges alone": lambda n: rg.EdgeType(2)(graph(n)),
    "edges over a default": lambda n: rg.EdgeType(2, attend="all", default="none")(graph(n)),
    "first_of": lambda n: rg.labels.first_of(rg.EdgeType(2)(graph(n)), rg.ClippedDistance(1)(n)),
    "sum": lambda n: SumLabels(distance(n), dense(n)),
    "packed": lambda n: distance(n, ptr=torch.tensor([0, 2, n])),
}


LENGTHS = (7, 9)  # no other size, which dynamo would take for the same


BACKENDS = ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)]


def inductor():
    without = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")
    return pytest.param("inductor", marks=[pytest.mark.slow, without])


def assert_alike(compiled, plain, leaves):
    """Both give the same output and the same gradients, those of the leaves."""
    got, wanted = compiled(), plain()
    torch.testing.assert_close(got, wanted)
    gradients = [torch.autograd.grad(out.square().sum(), leaves) for out in (got, wanted)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("backend", [*BACKENDS, inductor()])
@pytest.mark.parametrize("kind", GIVEN)
def test_a_layer_takes_labels_of_any_length_as_an_argument(kind, backend):
    labels = GIVEN[kind](5)
    layer = rg.RelationAttention(8, 2, num_labels=labels.num_labels, tables=("key", "value", "bias"), dtype=F64)
    batch = () if labels.packed else (2,)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    for n in LENGTHS:
        x, labels = torch.randn(*batch, n, 8, dtype=F64, requires_grad=True), GIVEN[kind](n)
        calls = [partial(call, x, labels=labels) for call in (compiled, layer)]
        assert_alike(*calls, [x, *layer.parameters()])
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["edges alone", "sum", "packed"])
def test_a_function_takes_labels_of_one_length_as_an_argument(kind, backend):
    labels = GIVEN[kind](LENGTHS[0])
    is_sum = isinstance(labels.num_labels, tuple)
    rows = [
        torch.randn(n, 4, dtype=F64, requires_grad=True)
        for n in (labels.num_labels if is_sum else (labels.num_labels,))
    ]
    table = tuple(rows) if is_sum else rows[0]

    def fn(q, k, v, labels):
        return rg.relation_attention(q, k, v, labels, table, table)

    compiled = torch.compile(fn, fullgraph=True, dynamic=False, backend=backend)
    shape = (LENGTHS[0], 2, 4) if labels.packed else (2, 2, LENGTHS[0], 4)
    leaves = [torch.randn(shape, dtype=F64, requires_grad=True) for _ in range(3)]
    assert_alike(*(partial(call, *leaves, labels) for call in (compiled, fn)), [*leaves, *rows])
    assert counters["stats"]["unique_graphs"] == 1


READERS = {
    "Graph.pairs": rg.NodeType(2),
    "Graph.parents": rg.UpDown(2),
    "shortest_path_lengths": rg.ShortestPath(2),
    "joining edges": rg.EdgeType(2, attend="all", default="none") * rg.EdgeType(2, attend="all", default="none"),
}


READ = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3, edge_type=torch.arange(2), node_type=torch.tensor([0, 1, 1]))


@pytest.mark.parametrize("reader", READERS)
def test_labelers_that_read_graphs_say_what_works(reader):
    """Dynamo quotes what is raised while it traces."""
    compiled = torch.compile(READERS[reader], fullgraph=True, backend="eager")
    match = (
        f"NotImplementedError.*{reader} looks at data, .* labels = labeler.graph., and pass them to it as an argument"
    )
    with pytest.raises(dynamo.exc.Unsupported, match=match):
        compiled(READ)


def test_a_compiled_layer_that_is_given_a_graph_says_what_works():
    layer = encoder_layer(8, 2, 16, 0.0, labeler=READERS["shortest_path_lengths"])
    compiled, x = torch.compile(layer, fullgraph=True, backend="eager"), torch.randn(2, 3, 8)
    with pytest.raises(dynamo.exc.Unsupported, match="NotImplementedError.*make the labels outside of the compiled"):
        compiled(x, labels=READ)
    torch.testing.assert_close(compiled(x, labels=layer.labeler(READ)), layer(x, labels=READ))


def test_joins_of_blocks_and_of_parallel_edges_say_what_works():
    ptr = torch.tensor([0, 2, 3])
    blocks = rg.BlockLabels(torch.zeros(5, dtype=torch.long), 2, ptr)
    twice = EdgeLabels(torch.zeros(2, 2).long(), torch.tensor([0, 1]), 2, q_len=3, default=-1, duplicates="first")
    for what, labels, other in (
        ("joining blocks", blocks, distance(3, ptr=ptr)),
        ("merging parallel edges", twice, distance(3)),
    ):
        compiled = torch.compile(
            lambda labels, other=other: rg.labels.product(labels, other), fullgraph=True, backend="eager"
        )
        with pytest.raises(dynamo.exc.Unsupported, match=f"NotImplementedError.*{what} looks at data"):
            compiled(labels)


def test_sizes_that_are_known_meet_sizes_that_are_open():
    """Labels and masks that a layer closes over have known sizes; those of its input are open."""
    layer = rg.RelationAttention(8, 2, num_labels=5)
    labels, mask = distance(7, q_offset=torch.tensor([0, 1])), torch.rand(2, 2, 7, 7) > 0.8

    def fn(x):
        return layer(x, labels=labels, attn_mask=mask)

    x = torch.randn(2, 7, 8)
    compiled = torch.compile(fn, fullgraph=True, dynamic=True, backend="eager")
    torch.testing.assert_close(compiled(x), fn(x))


def test_sums_packed_batches_and_dropout_compile():
    def fn(q, k, v, ptr, a, b):
        n = q.shape[0]
        labels = SumLabels(distance(n, ptr=ptr), distance(n, reach=1, ptr=ptr))
        return rg.relation_attention(q, k, v, labels, (a, b), impl="chunked", dropout_p=0.1)

    leaves = [torch.randn(7, 2, 4, dtype=F64, requires_grad=True) for _ in range(3)]
    a, b = torch.randn(5, 4, dtype=F64), torch.randn(3, 4, dtype=F64)
    out = torch.compile(fn, fullgraph=True, backend="aot_eager")(*leaves, torch.tensor([0, 3, 7]), a, b)
    assert out.shape == (7, 2, 4)
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), leaves))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(5, 4))

    def forward(self, x, labels=None):
        labels = distance(x.shape[2]) if labels is None else labels
        return rg.relation_attention(x, x, x, labels, self.table, self.table)


def test_export_takes_labels_as_an_input():
    net, x = Net(), torch.randn(2, 2, 6, 4)

    def labels():
        return DenseLabels(torch.randint(0, 5, (6, 6)), 5)

    program = torch.export.export(net, (x, labels()))
    other = labels()
    torch.testing.assert_close(program.module()(x, other), net(x, other))


@pytest.mark.parametrize(
    ("kind", "impl", "need"),
    [
        ("distance", "chunked", True),
        ("dense", "chunked", False),
        ("distance per row", "native", False),
        ("edges only", "native", False),
        ("edges sum", "native", True),
        ("sum", "chunked", True),
    ],
)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of opcheck in torch 2.15
def test_opcheck(kind, impl, need):
    """With and without the sums by label and the log-sum-exp."""
    needs = [need] * 2
    labels = KINDS[kind](5)
    case = make(labels)
    tensors, ints = encode(lower(labels))
    columns = sum(p.num_labels + 1 for p in lower(labels).parts)
    q, k, v = case.inputs
    tables = [torch.randn(*x.shape[:3], columns, dtype=F64, requires_grad=True) for x in (q, k)]
    seed = torch.tensor(3)
    hidden, learned = torch.rand(1, 1, 5, k.shape[2]) > 0.2, torch.randn(1, 1, 5, k.shape[2], requires_grad=True)
    for mask, score in ((hidden, [-1.0, 0.0]), *([(learned, [0.0, 2.0])] if impl == "chunked" else [])):
        flags = [True, *needs, mask.requires_grad]
        header = [0, columns, *flags, *[False] * (len(op._FLAGS) - len(flags))]
        given = {
            "query": q,
            "key": k,
            "value": v,
            "by_query": tables[0],
            "by_key": tables[1],
            "mask": mask,
            "seed": seed,
        }
        named = [given.get(name) for name in op._TENSORS]
        arguments = (*named, tensors, [*map(int, header), *ints], 0.5, 0.25, score, impl)
        result = torch.library.opcheck(torch.ops.relgraph.attend.default, arguments)
        assert set(result.values()) == {"SUCCESS"}


# where a graph breaks, dynamo itself looks at .grad of tensors that are no leaves
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize(
    ("name", "impl"),
    [
        ("softcap", "dense"),
        ("bilinear", "dense"),
        ("softcap", "chunked"),
        ("function", "chunked"),
        ("additive", "chunked"),
    ],
)
def test_scores(name, impl):
    score = {
        "softcap": rg.score.Softcap(3.0),
        "function": torch.sin,
        "additive": rg.score.Additive.learned(2, 4),
        "bilinear": rg.score.Bilinear.learned(5, 2, 4),
    }[name]
    labels, table, x = rg.ClippedDistance(2)(9), torch.randn(5, 4), torch.randn(1, 2, 9, 4, requires_grad=True)
    whole = impl == "dense" or name == "softcap"  # all else breaks the graph in chunked

    def fn(x):
        return rg.relation_attention(x, x, x, labels, table, score=score, impl=impl)

    compiled = torch.compile(fn, fullgraph=whole, backend="aot_eager")
    torch.testing.assert_close(compiled(x), fn(x))
    grads = [torch.autograd.grad(f(x).sin().sum(), x)[0] for f in (compiled, fn)]
    torch.testing.assert_close(*grads)
    if not whole:
        torch._dynamo.reset()
        with pytest.raises(Exception, match="need impl='dense' for a full graph"):
            torch.compile(fn, fullgraph=True, backend="aot_eager")(x)


@pytest.mark.parametrize("name", ["additive", "bilinear and maps of bases"])
def test_scores_over_edges(name):
    """Whole, whatever edges come: no size depends on which labels they carry."""
    maps, table = torch.randn(2, 3, 4, 4, requires_grad=True), torch.randn(3, 4)
    options = {
        "additive": {"score": rg.score.Additive.learned(2, 4)},
        "bilinear and maps of bases": {"score": rg.score.Bilinear(maps), "value_map": (torch.randn(3, 3), maps)},
    }[name]

    def fn(x, ends, ids):
        labels = EdgeLabels(ends, ids, 3, q_len=6)
        return rg.edge_attention(x, x, x, labels, table, **options)

    compiled = torch.compile(fn, fullgraph=True, dynamic=True, backend="aot_eager")
    for edges in (9, 14):
        x, ends = torch.randn(6, 2, 4, requires_grad=True), torch.randint(6, (2, edges))
        ids = torch.randint(-1, 3, (edges,))
        leaves = [x] if name == "additive" else [x, maps]
        outs = [run(x, ends, ids) for run in (compiled, fn)]
        torch.testing.assert_close(*outs)
        grads = [torch.autograd.grad(out.sin().sum(), leaves) for out in outs]
        torch.testing.assert_close(*grads)


def test_labels_by_function_are_refused_unless_they_are_written_out():
    labels, x, table = KINDS["function"](9), torch.randn(1, 2, 9, 4), torch.randn(4, 4)

    @torch.compile(backend="eager")
    def attend(x, labels):
        return rg.relation_attention(x, x, x, labels, table, impl="chunked")

    with pytest.raises(NotImplementedError, match=r"FunctionLabels.* cannot enter compiled code.*by \.dense\(\)"):
        attend(x, labels)
    torch.testing.assert_close(attend(x, labels.dense()), rg.relation_attention(x, x, x, labels, table))


@pytest.mark.parametrize("impl", ["chunked", "native"])
def test_second_derivatives_of_labels_by_function_are_refused(impl):
    labels, x = KINDS["function"](9), torch.randn(1, 2, 9, 4, requires_grad=True)
    z = rg.relation_attention(x, x, x, labels, torch.randn(4, 4), impl=impl)
    with pytest.raises(NotImplementedError, match=r"FunctionLabels.* second derivatives of kernels; .*by \.dense\(\)"):
        torch.autograd.grad(z.sum(), x, create_graph=True)
