"""What only compiled kernels have: threads, random numbers by position, checks before they run. Values and gradients
of every kind of labels: tests/impl/test_same_meaning.py."""

from __future__ import annotations

import ctypes
import pickle
import random
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import relgraph as rg
from relgraph.impl import by_function
from relgraph.impl.native import attend, build, problem
from relgraph.impl.native import edges as native_edges
from relgraph.impl.native.check import check_listed, check_tensors
from relgraph.impl.problem import Outputs, Problem
from relgraph.labels import BlockLabels, DenseLabels, DistanceLabels
from relgraph.plan import DistanceIds, lower
from relgraph.plan.memory import _by_ints
from relgraph.plan.parts import WrittenIds
from relgraph.score import Activation
from tests.cases import F64, KINDS, answer, assert_same, make, raw

pytestmark = [
    pytest.mark.skipif(build.missing() is not None, reason=f"no compiled kernels: {build.missing()}"),
    pytest.mark.usefixtures("poisoned"),
]


@pytest.mark.parametrize(
    ("kind", "heads"),
    [("distance", 3), ("dense batch", 1), ("block", 2), ("edges default packed", 1), ("sum", 1)],
)
def test_threads_share_the_work_of_few_heads(kind, heads, threads):
    """Fewer heads than threads: each head's rows are split, and the gradients of keys are summed."""
    case = make(KINDS[kind](150), heads=heads, kv_heads=1, batch=1)
    threads(1)
    outputs, grads = answer(case, "native")
    threads(4)
    for _ in range(2):
        again, more = answer(case, "native")
        for one, two in zip([*outputs, *grads], [*again, *more], strict=True):
            torch.testing.assert_close(one, two)


@pytest.mark.parametrize("shape", [(1, 3, 40, 40), (1, 1, 40, 40), (4, 1, 40, 40), (4, 3, 40, 40), (1, 1, 1, 40)])
def test_threads_share_the_gradient_of_a_mask(shape, threads):
    """What adds to the same numbers is cut into shares, which are added in order."""
    case = make(KINDS["distance"](40), heads=3, kv_heads=3, batch=4, kinds="b")
    case.options["attn_mask"] = torch.randn(shape, dtype=F64, requires_grad=True)
    threads(1)
    _, wanted = answer(case, "native")
    for count in (2, 5):
        threads(count)
        _, grads = answer(case, "native")
        _, again = answer(case, "native")
        assert_same(grads, wanted, atol=1e-12)
        assert all(map(torch.equal, grads, again))


def problem_of(labels, **changes):
    """A problem with random numbers on these labels, in float64, and outputs' gradients for it."""
    plan = lower(labels)
    rows, keys, columns = plan.q_len, plan.k_len, plan.columns
    made = Problem(
        query=_draw(2, rows, 3), key=_draw(1, keys, 3), value=_draw(1, keys, 4), by_query=_draw(2, rows, columns),
        by_key=_draw(2, keys, columns), label_keys=None, label_values=None, label_queries=None, label_biases=None,
        key_gates=None, value_gates=None, value_maps=None, score_maps=None, score_weights=None, vector_maps=None,
        vector_queries=None, vectors=None, mask=None, keep=None, seed=torch.tensor(7), plan=plan,
        causal=None, scale=0.5, dropout_p=0.0, columns=columns, need_sums=True, need_mass=False, mask_gradient=False, vectors_in_score=False,
        vectors_in_value=False, vectors_gradient=False, score=None, plan_key=None,
    )  # fmt: skip
    return replace(made, **changes)


def _draw(*shape):
    return torch.randn(1, *shape, dtype=F64)


def run_both(problem):
    """Forward and backward, with ones as gradients of the outputs."""
    outputs = attend._forward(problem)
    ones = Outputs(*(torch.ones_like(x) if x is not None and x.numel() else None for x in outputs))
    return outputs, attend._backward(problem, outputs, ones)


def test_a_shard_draws_the_mask_of_the_whole(monkeypatch):
    """Kept weights depend on the seed and the place in the whole problem only."""
    labels = DistanceLabels(90, lookup=range(5), left=2)
    whole = problem_of(labels, dropout_p=0.4)
    whole = replace(whole, value=torch.eye(90, dtype=F64).expand(1, 1, 90, 90))
    kept = attend._forward(whole).output != 0
    assert 0.5 < kept.double().mean() < 0.7

    later = DistanceLabels(33, 40, lookup=range(5), left=2, q_offset=7)
    shard = replace(
        problem_of(later, dropout_p=0.4), query=whole.query[:, 1:, 50:83], key=whole.key[:, :, 43:83],
        value=torch.eye(40, dtype=F64).expand(1, 1, 40, 40), by_query=whole.by_query[:, 1:, 50:83],
        by_key=whole.by_key[:, 1:, 43:83],
    )  # fmt: skip
    filled = attend.ProblemStructs

    def placed(*args, **options):
        made = filled(*args, **options)
        made.struct.origin = (ctypes.c_int64 * 4)(0, 1, 50, 43)
        return made

    monkeypatch.setattr(attend, "ProblemStructs", placed)
    assert torch.equal(attend._forward(shard).output != 0, kept[:, 1:, 50:83, 43:83])


@pytest.mark.parametrize("keys", [5, 64, 65, 200])
def test_dropout_keeps_the_mean(keys):
    """Each of many draws keeps a weight by 0.75, and multiplies it by what makes up for the rest."""
    case = make(DistanceLabels(300, keys, lookup=[0], left=0), batch=4, heads=2, kinds="")
    case.inputs[2] = torch.eye(keys, dtype=F64).expand(4, 2, keys, keys)
    plain = raw(case, "native")[0]
    case.options["dropout_p"] = 0.25
    dropped = raw(case, "native")[0]
    share = dropped / plain
    torch.testing.assert_close(share[share != 0], torch.full_like(share[share != 0], 1 / 0.75))
    spread = (0.75 * 0.25 / share.numel()) ** 0.5
    assert abs((share != 0).double().mean() - 0.75) < 5 * spread
    by_key = (share != 0).double().mean((0, 1, 2))
    assert (by_key - 0.75).abs().max() < 6 * (0.75 * 0.25 / 2400) ** 0.5


PTR = torch.tensor([0, 3, 3, 8])


def packed():
    return BlockLabels(torch.randint(-1, 3, (9 + 25,)), 3, PTR)


def part(plan, **changes):
    return replace(plan, parts=(replace(plan.parts[0], **changes), *plan.parts[1:]))


def ids(plan, **changes):
    return part(plan, ids=replace(plan.parts[0].ids, **changes))


def csr(plan, **changes):
    return part(plan, csr=replace(plan.parts[0].csr, **changes))


def edges():
    return KINDS["edges default"](8)


def dense():
    return DenseLabels(torch.randint(0, 3, (8, 8)), 3)


WRONG = {
    "an id beyond the labels": (dense, lambda p: ids(p, ids=p.parts[0].ids.ids.clone().fill_(3)), "ids must be in"),
    "an id below": (dense, lambda p: ids(p, ids=p.parts[0].ids.ids.clone().fill_(-3)), "ids must be in"),
    "too few ids": (dense, lambda p: ids(p, ids=p.parts[0].ids.ids[:, :7]), "ids must have shape"),
    "ids of floats": (dense, lambda p: ids(p, ids=p.parts[0].ids.ids.float()), "ids must be signed integers"),
    "ids of another batch": (dense, lambda p: ids(p, ids=p.parts[0].ids.ids.expand(3, 8, 8)), "ids must have shape"),
    "ids by function": (dense, lambda p: part(p, ids=KINDS["function"](8)._ids), "ids must be by distance or written"),
    "no lookup": (lambda: KINDS["distance"](8), lambda p: part(p, ids=DistanceIds(0, ())), "lookup must have"),
    "a lookup beyond": (lambda: KINDS["distance"](8), lambda p: part(p, ids=DistanceIds(0, (9,))), "lookup must be in"),
    "falling borders": (packed, lambda p: replace(p, q_ptr=torch.tensor([0, 4, 3, 8])), "q_ptr must rise"),
    "borders that end early": (packed, lambda p: replace(p, k_ptr=torch.tensor([0, 3, 3, 7])), "k_ptr must rise"),
    "borders of more graphs": (packed, lambda p: replace(p, k_ptr=torch.tensor([0, 3, 3, 3, 8])), "as many borders"),
    "borders of one side": (packed, lambda p: replace(p, k_ptr=None), "given together"),
    "blocks outside": (packed, lambda p: ids(p, starts=torch.tensor([0, 9, 10, 35])), "starts must leave room"),
    "blocks before": (packed, lambda p: ids(p, starts=torch.tensor([-1, 9, 9, 34])), "starts must leave room"),
    "no blocks": (packed, lambda p: ids(p, starts=None), "starts must have"),
    "offsets of other graphs": (packed, lambda p: part(p, offset=torch.tensor([1, 2])), "q_offset must have"),
    "listed keys beyond": (edges, lambda p: csr(p, col=p.parts[0].csr.col + 8), "col must be in"),
    "listed keys out of order": (edges, lambda p: csr(p, col=p.parts[0].csr.col.flip(0)), "col must rise"),
    "listed ids beyond": (edges, lambda p: csr(p, ids=p.parts[0].csr.ids + 9), "ids must be in"),
    "rows that fall": (edges, lambda p: csr(p, row_ptr=p.parts[0].csr.row_ptr.flip(0)), "row_ptr must rise"),
    "rows beyond": (edges, lambda p: csr(p, row_ptr=p.parts[0].csr.row_ptr * 2), "row_ptr must rise"),
    "too few rows": (edges, lambda p: csr(p, row_ptr=p.parts[0].csr.row_ptr[1:]), "row_ptr must have"),
    "roles of another dtype": (edges, lambda p: csr(p, role=p.parts[0].csr.role.long()), "role must be int8"),
    "unknown roles": (edges, lambda p: csr(p, role=p.parts[0].csr.role + 3), "role must be in"),
    "pairs of another batch": (edges, lambda p: csr(p, batch=3), "listed pairs must be of"),
    "too few listed ids": (edges, lambda p: csr(p, ids=p.parts[0].csr.ids[1:]), "ids must have"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_plan_that_does_not_fit_never_reaches_the_kernels(what):
    make_labels, spoil, message = WRONG[what]
    problem = problem_of(make_labels())
    run_both(problem)
    with pytest.raises(ValueError, match=message):
        attend._forward(replace(problem, plan=spoil(problem.plan)))


def test_listed_pairs_that_contradict_each_other_are_refused():
    problem = problem_of(KINDS["edges first"](8))
    spoilt = csr(problem.plan, role=torch.ones_like(problem.plan.parts[0].csr.role))
    with pytest.raises(ValueError, match="one first entry per pair"):
        attend._forward(replace(problem, plan=spoilt))
    problem = problem_of(KINDS["edges default packed"](8))
    spoilt = csr(problem.plan, col=torch.zeros_like(problem.plan.parts[0].csr.col))
    with pytest.raises(ValueError, match="own graph"):
        attend._forward(replace(problem, plan=spoilt))


SHAPES = {
    "key": ("key", lambda p: p.key[:, :, 1:], "key must have shape"),
    "key dtype": ("key", lambda p: p.key.float(), "key must be torch.float64"),
    "value": ("value", lambda p: p.value[:, :, 1:], "value must have shape"),
    "query": ("query", lambda p: p.query[:, :, 1:], "query must have shape"),
    "by_query": ("by_query", lambda p: p.by_query[..., 1:], "by_query must have shape"),
    "by_query dtype": ("by_query", lambda p: p.by_query.float(), "by_query must be"),
    "by_key": ("by_key", lambda p: p.by_key[:, :1], "by_key must have shape"),
    "label_biases": ("label_biases", lambda p: torch.ones(p.columns + 1, dtype=F64), "label_biases must have shape"),
    "label_biases of heads": ("label_biases", lambda p: torch.ones(3, p.columns, dtype=F64), "must have shape"),
    "label_biases dtype": ("label_biases", lambda p: torch.ones(p.columns - 1), "label_biases must be"),
    "label_values": ("label_values", lambda p: torch.ones(p.columns, 3, dtype=F64), "label_values must have shape"),
    "label_values of heads": ("label_values", lambda p: torch.ones(1, p.columns, 4, dtype=F64), "must have shape"),
    "label_values dtype": ("label_values", lambda p: torch.ones(p.columns - 1, 4), "label_values must be"),
    "value_maps": ("value_maps", lambda p: torch.ones(3, 4, 3, dtype=F64), "value_maps must have shape"),
    "value_maps of heads": ("value_maps", lambda p: torch.ones(1, 3, 4, 4, dtype=F64), "value_maps must have shape"),
    "score_maps": ("score_maps", lambda p: torch.ones(2, 3, 3, dtype=F64), "score_maps must have shape"),
    "score_maps dtype": ("score_maps", lambda p: torch.ones(3, 3, 3), "score_maps must be"),
    "no activation": ("score_weights", lambda p: torch.ones(3, dtype=F64), "given with an activation and only then"),
    "no weights": ("score", lambda p: Activation("tanh"), "score_weights must be given with an activation"),
    "mask": ("mask", lambda p: torch.ones(1, 1, 8, 7, dtype=torch.bool), "mask must broadcast"),
    "mask dimensions": ("mask", lambda p: torch.ones(8, 8, dtype=torch.bool), "mask must broadcast"),
    "gradient of no mask": ("mask_gradient", lambda p: True, "mask must be floating if it needs a gradient"),
    "columns": ("columns", lambda p: p.columns + 1, "columns must be"),
    "heads": ("key", lambda p: p.key.expand(1, 3, 8, 3), "number of heads"),
    "causal": ("causal", lambda p: torch.tensor([1, 2]), "offset must have"),
    "biases beside scores": (
        "label_biases",
        lambda p: torch.ones(p.columns - 1, dtype=F64),
        "by_query must be None with",
    ),
}


@pytest.mark.parametrize("what", SHAPES)
def test_tensors_that_do_not_fit_never_reach_the_kernels(what):
    name, spoil, message = SHAPES[what]
    problem = problem_of(dense())
    with pytest.raises(ValueError, match=message):
        check_tensors(replace(problem, **{name: spoil(problem)}))


def test_maps_and_weights_that_do_not_fit_together_never_reach_the_kernels():
    maps, additive = torch.ones(3, 3, 3, dtype=F64), {"score": Activation("tanh"), "by_query": None}
    for changes, message in (
        ({"score_weights": torch.ones(4, dtype=F64), **additive}, "score_weights must have shape"),
        ({"score_weights": torch.ones(3, 3, dtype=F64), **additive}, "score_weights must have shape"),
        ({"score_weights": torch.ones(3, dtype=F64), "score_maps": maps, **additive}, "score_maps must be None with"),
    ):
        with pytest.raises(ValueError, match=message):
            check_tensors(replace(problem_of(dense()), **changes))
    with pytest.raises(ValueError, match="score_maps must be None for a sum of labels"):
        check_tensors(problem_of(KINDS["sum"](8), score_maps=maps))


@pytest.mark.parametrize("kind", ["distance", "edges only"])
def test_the_op_checks_what_anyone_may_call_it_with(kind):
    """Calls of relgraph are checked once, at the door; those of the op from elsewhere before the kernels run."""
    given = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.relgraph.attend.default:
                given.append(args)
            return function(*args, **kwargs or {})

    with Watching():
        raw(make(KINDS[kind](6), kinds="kv"), "native")
    query, key, *rest = given[0]
    with pytest.raises(ValueError, match="key must have shape"):
        torch.ops.relgraph.attend(query, key[:, :, 1:], *rest)


def test_the_value_term_needs_the_sums():
    problem = problem_of(dense())
    table = torch.ones(problem.columns, 4, dtype=F64)
    with pytest.raises(ValueError, match="need_sums must be True with label_values, got False"):
        check_tensors(replace(problem, label_values=table, need_sums=False))


@pytest.mark.parametrize("kind", ["distance", "edges only"])
def test_shapes_on_the_meta_device(kind):
    """Nothing is read where there are no numbers."""
    case = make(KINDS[kind](6), kinds="")
    case.inputs = [x.detach().to("meta") for x in case.inputs]
    if kind == "distance":
        assert raw(case, "native")[0].device.type == "meta"
    for name in ("query", "key", "value"):
        with pytest.raises(ValueError, match=f"{name} must be on the CPU, got meta"):
            check_tensors(replace(problem_of(dense()), **{name: torch.empty(1, 1, 8, 3, device="meta")}))


@pytest.mark.parametrize("layout", ["turned", "strided", "expanded", "one number"])
@pytest.mark.parametrize("dtype", [F64, torch.bfloat16])
def test_any_strides(layout, dtype):
    """Rows that are not dense are copied; nothing is read beside them."""
    n, size = 40, 1 if layout == "one number" else 6

    def made():
        if layout == "turned":
            return torch.randn(1, 2, size, n, dtype=dtype).transpose(2, 3)
        if layout == "strided":
            return torch.randn(1, 2, n, 2 * size, dtype=dtype)[..., ::2]
        if layout == "expanded":
            return torch.randn(1, 2, 1, size, dtype=dtype).expand(1, 2, n, size)
        return torch.randn(1, 2, n, 3, dtype=dtype)[..., 1:2]

    case = make(KINDS["distance"](n), size=size, value_size=size, batch=1, dtype=dtype)
    case.inputs = [made() for _ in range(3)]
    strided = raw(case, "native")
    case.inputs = [x.contiguous() for x in case.inputs]
    for one, two in zip(strided, raw(case, "native"), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize(
    ("n", "window", "dtype"),
    [(300, 1, torch.float32), (1300, 40, torch.bfloat16), (1300, 700, torch.float32), (300, 40, torch.bfloat16)],
)
def test_windows_over_several_panels(n, window, dtype):
    """Keys that no row of a block sees are left out; what is left begins and ends within panels and steps."""
    labels = DistanceLabels(n, lookup=[-2, *[0] * window, 1, *[0] * window, -2], left=window + 1)
    case = make(labels, heads=1, kv_heads=1, size=8, value_size=8, kinds="kv", batch=1, dtype=dtype)
    outputs, grads = answer(case, "native")
    wanted, wanted_grads = answer(case, "dense")
    loose = {"rtol": 0.05, "atol": 0.05} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    for got, want in zip([*outputs, *grads], [*wanted, *wanted_grads], strict=True):
        torch.testing.assert_close(got, want, **loose)


@pytest.mark.parametrize(
    ("kind", "dropout_p"),
    [("distance packed", 0.0), ("sum", 0.3), ("edges only", 0.0), ("edges only parallel", 0.3)],
)
def test_second_derivatives(kind, dropout_p):
    """They go through plain torch, with the weights that the kernels dropped."""
    case = make(KINDS[kind](4))
    case.options["dropout_p"] = dropout_p
    case.options["attn_mask"] = torch.randn(2, 4, 4, dtype=F64, requires_grad=True)

    def seeded(*_):
        torch.manual_seed(0)
        return raw(case, "native")[0]

    assert torch.autograd.gradgradcheck(seeded, case.leaves, fast_mode=True)


@pytest.mark.parametrize("kind", ["distance", "dense batch", "edges default packed", "edges only", "sum"])
def test_a_default_device_changes_nothing(kind):
    """Room for results is where the tensors are: an address on another device would end the process."""
    case = make(KINDS[kind](9), batch=1 if "packed" in kind else 2)
    case.options["dropout_p"] = 0.3

    def run():
        torch.manual_seed(0)
        output = raw(case, "native")[0]
        return [output, *torch.autograd.grad(output.sum(), case.leaves)]

    wanted = run()
    case.labels = pickle.loads(pickle.dumps(case.labels))  # they are lowered again
    with torch.device("meta"):
        found = run()
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.equal(mine, theirs)


SEES_NOTHING = {
    "a window beyond the keys": lambda: (DistanceLabels(400, 400, lookup=(-2, 0, 1, -2), left=1).cols(0, 128), None),
    "causal order before the keys": lambda: (None, -250),
}


@pytest.mark.parametrize("what", SEES_NOTHING)
@pytest.mark.parametrize(("panel", "dtype"), [(64, torch.float32), (128, torch.bfloat16), (128, F64)])
def test_blocks_of_rows_that_see_no_key(what, panel, dtype, monkeypatch):
    """Their outputs and gradients are zeros, and no product is asked for no keys."""
    monkeypatch.setattr(problem, "PANEL", panel)
    monkeypatch.setattr(problem, "FEWEST_KEYS", 1)
    _by_ints.found.clear()  # structs have the numbers from which they were made
    labels, offset = SEES_NOTHING[what]()
    leaves = [torch.randn(1, 2, n, 16, dtype=dtype, requires_grad=True) for n in (400, 128, 128)]
    tables = [] if labels is None else [torch.randn(2, 16, dtype=dtype, requires_grad=True) for _ in range(2)]
    options = {} if offset is None else {"is_causal": True, "q_offset": offset}
    found = {}
    for impl in ("native", "reference"):
        z = rg.relation_attention(*leaves, labels, *tables, impl=impl, **options)
        found[impl] = (z, *torch.autograd.grad(z.float().cos().sum(), [*leaves, *tables]))
        assert found[impl][1][0, :, -1].eq(0).all() or offset is not None  # the last query is far from all keys
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.1, F64: 1e-10}[dtype]
    for mine, wanted in zip(found["native"], found["reference"], strict=True):
        torch.testing.assert_close(mine, wanted, atol=tolerance, rtol=tolerance)


# ---- exceptions in C++ ----

THROWS = {
    "_ZSt17__throw_bad_allocv": (MemoryError, "std::bad_alloc"),
    "_ZSt16__throw_bad_castv": (RuntimeError, "std::bad_cast"),
}


@pytest.fixture(params=THROWS)
def throws(request):
    """The address of a function that throws, and what Python must raise."""
    function = getattr(ctypes.CDLL("libstdc++.so.6"), request.param)
    return ctypes.cast(function, ctypes.c_void_p).value, *THROWS[request.param]


@pytest.mark.parametrize(
    ("kind", "count", "name"), [("dense", 1, "relgraph"), ("dense", 2, "relgraph"), ("edges only", 2, "relgraph_edges")]
)
def test_an_exception_of_a_task_is_raised_in_python(kind, count, name, throws, threads, monkeypatch):
    """Whichever thread of the pool it comes in; the next call works."""
    threads(count)
    known, (address, error, why) = build.kernels(), throws
    case = make(KINDS[kind](70), heads=4, kv_heads=4, batch=1)
    wanted = raw(case, "native")
    spoilt = {"gemm": dict.fromkeys((4, 8), address)} if kind == "dense" else {"parallel": address}
    monkeypatch.setattr(build, "_known", replace(known, found=replace(known.found, **spoilt)))
    with pytest.raises(error, match=f"impl='native' failed in {name}_forward: {why}"):
        raw(case, "native")
    with pytest.raises(error, match=f"impl='native' failed in {name}_backward: {why}"):
        wanted[0].sum().backward()
    monkeypatch.undo()
    torch.testing.assert_close(raw(case, "native"), wanted)


@pytest.mark.parametrize("seed", range(80))
def test_spoilt_plans_are_refused_or_computed(seed):
    """A number, a dtype or a length anywhere in a plan is changed: an error, or an answer, and never a read outside."""
    generator = random.Random(seed)
    listed = ["edges default", "edges only", "edges only packed"]
    kind = generator.choice(["dense", "dense batch", "block", *listed])
    problem, kernels, check = problem_of(KINDS[kind](9)), attend, check_tensors
    if problem.plan.edges_only:
        problem = replace(problem, by_query=None, by_key=None, columns=0, need_sums=False)
        kernels, check = native_edges, check_listed
    spoilt = replace(problem, plan=spoil(problem.plan, generator))
    try:
        check(spoilt)
        outputs = kernels._forward(spoilt)
        incoming = Outputs(*(torch.ones_like(x) if x is not None and x.numel() else None for x in outputs))
        kernels._backward(spoilt, outputs, incoming)
    except (ValueError, IndexError):
        return
    assert outputs.output.shape[2] == problem.plan.q_len


def spoil(plan, generator):
    """The plan with one thing changed somewhere in its tensors or numbers."""
    whole, one = [name for name in ("q_ptr", "k_ptr") if getattr(plan, name) is not None], plan.parts[0]
    places = [(plan, name) for name in whole] + [(one, "offset")] * isinstance(one.offset, torch.Tensor)
    if isinstance(one.ids, WrittenIds):
        places += [(one.ids, "ids")] + [(one.ids, "starts")] * (one.ids.starts is not None)
    if one.csr is not None:
        places += [(one.csr, name) for name in ("row_ptr", "col", "ids", "role", "order")]
    if not places or generator.random() < 0.1:
        return replace(plan, **{generator.choice(["q_len", "k_len"]): generator.choice([0, 1, 8, 10, 1 << 40])})
    owner, name = generator.choice(places)
    changed = replace(owner, **{name: spoilt_tensor(getattr(owner, name), generator)})
    if owner is plan:
        return changed
    if owner is not one:
        changed = replace(one, **{"csr" if owner is one.csr else "ids": changed})
    return replace(plan, parts=(changed, *plan.parts[1:]))


def spoilt_tensor(x, generator):
    """A tensor with another number, dtype, length or layout."""
    way = generator.choice(["number", "number", "number", "dtype", "shorter", "longer", "strided"])
    if way == "number" and x.numel():
        x = x.clone()
        number = generator.choice([-(1 << 40), -3, -1, 0, 3, 9, 81, 1 << 31, 1 << 32, 1 << 40])
        x.view(-1)[generator.randrange(x.numel())] = torch.tensor(number).to(x.dtype)
        return x
    if way == "dtype":
        return x.to(generator.choice([torch.int8, torch.int32, torch.float32, torch.uint8, torch.bool]))
    if way == "shorter":
        return x[..., :-1]
    if way == "longer":
        return torch.cat([x, x], -1)
    return x.repeat_interleave(2, -1)[..., ::2]


def test_one_key_whose_row_has_a_step_of_one():
    """torch calls such a tensor contiguous, but the kernels step by its stride."""
    q, v = torch.randn(1, 3, 6, 3, dtype=torch.bfloat16), torch.randn(1, 1, 1, 4, dtype=torch.bfloat16)
    k = torch.randn(3, 14, dtype=torch.bfloat16).as_strided((1, 1, 1, 3), (14, 14, 1, 14))
    got, wanted = (
        rg.relation_attention_with_aux(q, k, v, None, enable_gqa=True, need_lse=True, impl=impl)[1].lse
        for impl in ("native", "reference")
    )
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("kind", ["many distances", "function"])
def test_heads_without_numbers(kind, monkeypatch):
    """Queries of size 0 have room for no table; and blocks take their rows of them."""
    monkeypatch.setattr(by_function, "BLOCK_IDS", 1)
    monkeypatch.setattr(by_function, "FEWEST_ROWS", 2)
    labels = rg.ClippedDistance(60)(6) if kind == "many distances" else KINDS["function"](6)
    key = torch.zeros(labels.num_labels, 0, dtype=F64, requires_grad=True)
    query = torch.zeros(3, 2, 6, 0, dtype=F64, requires_grad=True)
    value = torch.randn(3, 2, 6, 4, dtype=F64, requires_grad=True)
    found = []
    for impl in ("native", "reference"):
        z = rg.relation_attention(query, query, value, labels, key, impl=impl)
        found.append([z, *torch.autograd.grad(z.sin().sum(), [query, value, key])])
    assert_same(found[0], found[1], atol=1e-12)
