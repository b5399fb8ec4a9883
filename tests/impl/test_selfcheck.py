"""The self-check of the fused kernels: its outcomes, and whatever the caller's state is.

Without a GPU the CPU takes its place: the one function that says which devices the kernels are meant for is replaced,
and Triton's interpreter runs them.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import relgraph as rg
from relgraph.impl import op
from relgraph.impl.rule import choose
from relgraph.impl.triton import limits, selfcheck
from relgraph.labels import DenseLabels, EdgeLabels
from tests.impl.test_choose import call

pytest.importorskip("triton")

pytestmark = pytest.mark.cuda
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")
KEY = selfcheck.Configuration(DEVICE, torch.float32, False, 16)
LISTED = KEY._replace(listed=True)


@pytest.fixture(autouse=True)
def _new(monkeypatch):
    """A process that has checked nothing yet, with a GPU in the words of the rule."""
    monkeypatch.setattr(selfcheck, "_outcomes", {})
    monkeypatch.setattr(limits, "is_gpu", lambda device: device.type == DEVICE.type)


@pytest.fixture
def tiny(monkeypatch):
    """Problems that the interpreter solves in no time."""
    index, ids = torch.tensor([[0, 1, 1], [1, 0, 1]]), torch.tensor([0, 1, 4])
    # with two rows, causal, gradients of scores nearly cancel, and rounding is a large share of what stays
    dense = DenseLabels(torch.tensor([[[0, 1, 2], [4, -1, 3], [1, 2, 0]]]), 5)
    edges = EdgeLabels(index, ids, 5, q_len=3)
    monkeypatch.setattr(
        selfcheck, "_problems", lambda listed: {"edges": (edges, ())} if listed else {"ids": (dense, ("causal",))}
    )


def break_kernels(monkeypatch, name="triton", *, forward=None, backward=None):
    """Replaces the kernels of a family; each replacement is given what the real ones found."""
    right = op._KERNELS[name]
    changed = right._replace(
        forward=(lambda problem: forward(right.forward(problem))) if forward else right.forward,
        backward=(lambda *given: backward(right.backward(*given))) if backward else right.backward,
    )
    monkeypatch.setitem(op._KERNELS, name, changed)


def on_device(**options):
    given = call(**options)
    return replace(given, **{name: getattr(given, name).to(DEVICE) for name in ("query", "key", "value")})


def counted(monkeypatch, outcome=None):
    """Replaces the check by one that only counts; the configurations that were checked."""
    made = []

    def check(asked):
        made.append(asked)
        return outcome or selfcheck.Outcome(None, 0.0, 0.5)

    monkeypatch.setattr(selfcheck, "_check", check)
    return made


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        pytest.param(torch.bfloat16, 64, marks=pytest.mark.slow),
        (torch.float32, 16),
    ],
)
def test_the_kernels_pass(dtype, size, listed, monkeypatch):
    if not CUDA:  # the interpreter is slow
        monkeypatch.setattr(selfcheck, "HEADS", 1)
    asked = selfcheck.Configuration(DEVICE, dtype, listed, size)
    found = selfcheck.make_sure(asked)
    assert found.why is None
    assert 0 < found.worst <= selfcheck.allowed(dtype) / 3
    assert found.seconds > 0
    assert selfcheck.make_sure(asked) is found


def test_the_problems_have_tiles_of_all_sorts():
    from relgraph.impl.triton.tile_map import tile_map
    from relgraph.plan import lower

    for name, (labels, more) in selfcheck._problems(listed=False).items():
        causal = "causal" in more
        made = tile_map(lower(labels), 64, 64, batch=1, causal=0 if causal else None, device=torch.device("cpu"))
        assert len(made.tiles), name
        assert len(made.runs) or causal, name
    edges = selfcheck._problems(listed=True)["edges"][0]
    counts = torch.bincount(edges.edge_index[1], minlength=edges.q_len)
    assert counts.min() == 0
    assert counts.max() > 4


def test_what_passes_is_taken_and_remembered(monkeypatch):
    made = counted(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [choose(on_device(), None) for _ in range(3)] == ["triton"] * 3
    assert made == [KEY]
    assert choose(on_device(need_weights=True), None) == "dense"
    assert choose(on_device(q_len=2048, k_len=2048, score=rg.score.compatibility(torch.sin)), None) == "chunked"
    assert len(made) == 1


def test_each_dtype_family_and_rounded_size_is_checked_once(monkeypatch):
    made = counted(monkeypatch)
    x = torch.zeros(1, 1, 3, 2, device=DEVICE)
    edges = EdgeLabels(torch.tensor([[0], [1]]), torch.tensor([0]), 1, q_len=3).to(DEVICE)
    for dtype in (torch.float32, torch.bfloat16):
        for labels in (None, edges, None):
            assert rg.which_impl(x.to(dtype), x.to(dtype), x.to(dtype), labels).impl == "triton"
    dtypes = torch.float32, torch.bfloat16
    assert made == [KEY._replace(dtype=dtype, listed=listed) for dtype in dtypes for listed in (False, True)]
    made.clear()
    for size, value_size in [(2, 3), (64, 5), (33, 33), (5, 64), (65, 2), (200, 256)]:
        query, value = (torch.zeros(1, 1, 3, n, device=DEVICE) for n in (size, value_size))
        assert rg.which_impl(query, query, value, None).impl == "triton"
    assert made == [KEY._replace(size=size) for size in (64, 128, 256)]


def test_a_size_that_does_not_compile_takes_out_that_size_only(monkeypatch, tiny, no_kernels):
    """Kernels for wide heads ask for more shared memory, which a GPU may not have."""
    right = op._KERNELS["triton"]

    def forward(problem):
        if problem.query.shape[-1] > 16:
            raise RuntimeError("out of resource: shared memory")
        return right.forward(problem)

    monkeypatch.setitem(op._KERNELS, "triton", right._replace(forward=forward))
    narrow, wide = (torch.randn(1, 1, 5, size, device=DEVICE) for size in (16, 20))
    with pytest.warns(UserWarning, match="all pairs, heads of 32: RuntimeError: out of resource"):
        found = rg.relation_attention(wide, wide, wide, None)
    torch.testing.assert_close(found, rg.relation_attention(wide, wide, wide, None, impl="reference"))
    assert rg.which_impl(wide, wide, wide, None).impl == "dense"
    assert rg.which_impl(narrow, narrow, narrow, None).impl == "triton"
    # a traced call may not know its size: it takes no kernels that some size has not passed
    assert (
        selfcheck.failure(DEVICE, torch.float32, False) == "heads of 32: RuntimeError: out of resource: shared memory"
    )


def add_a_half(outputs):
    return outputs._replace(output=outputs.output + 0.5)


def double_that_of_key(gradients):
    query, key, *others = gradients
    return [query, key * 2, *others]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"forward": add_a_half}, r"ids, output: \d\.\de-01"),
        ({"backward": double_that_of_key}, r"ids, gradient of key: \d\.\de[-+]\d\d"),
        ({"forward": lambda outputs: outputs._replace(output=outputs.output * float("nan"))}, "ids, output: nan"),
    ],
    ids=["values", "gradients", "nan"],
)
def test_wrong_numbers_are_told_once_and_not_used(monkeypatch, tiny, no_kernels, changes, what):
    break_kernels(monkeypatch, **changes)
    with pytest.warns(UserWarning, match=what) as told:
        assert choose(on_device(), None) == "dense"
    assert len(told) == 1
    text = str(told[0].message)
    assert str(DEVICE) in text
    assert "float32, all pairs" in text
    assert f"relgraph {rg.__version__}, torch {torch.__version__}, triton " in text
    assert "impl=None takes 'dense' or 'chunked' instead" in text
    assert "`python -m relgraph`" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose(on_device(), None) == "dense"
        assert choose(on_device(q_len=1024, k_len=1024), None) in ("chunked", "native")
        assert choose(on_device(), "triton") == "triton"  # asked for by name it runs


def test_kernels_that_do_not_compile_are_told_once_and_not_used(monkeypatch, tiny):
    def forward(outputs):
        raise RuntimeError("\nno such instruction on this GPU\nat line 7")

    break_kernels(monkeypatch, "triton edges", forward=forward)
    x = torch.randn(1, 1, 3, 4, device=DEVICE)
    edges = EdgeLabels(torch.tensor([[0], [1]]), torch.tensor([0]), 1, q_len=3).to(DEVICE)
    with pytest.warns(
        UserWarning, match="listed pairs, heads of 16: RuntimeError: no such instruction on this GPU. rel"
    ) as told:
        found = rg.relation_attention(x, x, x, edges)
    assert len(told) == 1
    torch.testing.assert_close(found, rg.relation_attention(x, x, x, edges, impl="reference"))
    outcome = selfcheck.remembered(LISTED)
    assert "at line 7" in outcome.trace
    assert rg.which_impl(x, x, x, None).impl == "triton"  # the other family is not concerned


def test_a_full_device_is_no_fault_of_the_kernels(monkeypatch, tiny):
    right = op._KERNELS["triton"]

    def forward(problem):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setitem(op._KERNELS, "triton", right._replace(forward=forward))
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        choose(on_device(), None)
    monkeypatch.setitem(op._KERNELS, "triton", right)
    assert choose(on_device(), None) == "triton"


class Recorded(TorchDispatchMode):
    """Notes the operators that it sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def random_states():
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if CUDA else [])]


def test_the_state_of_the_caller_does_not_matter(tiny):
    """Nor does the check change it: no random number is drawn."""
    plain = selfcheck.make_sure(KEY)
    selfcheck._outcomes.clear()
    before, default = random_states(), torch.get_default_dtype()
    with contextlib.ExitStack() as states:
        for state in (torch.inference_mode(), torch.autocast(DEVICE.type, torch.bfloat16), torch.device("meta")):
            states.enter_context(state)
        mode = states.enter_context(Recorded())
        torch.set_default_dtype(torch.float64)
        states.callback(torch.set_default_dtype, default)
        found = selfcheck.make_sure(KEY)
    assert (found.why, found.worst) == (None, plain.worst)
    assert not mode.seen
    for one, other in zip(random_states(), before, strict=True):
        assert torch.equal(one, other)


def test_threads_wait_for_one_check(monkeypatch, no_kernels):
    begun, go, made = threading.Event(), threading.Event(), []

    def check(asked):
        made.append(asked)
        begun.set()
        assert go.wait(20)
        return selfcheck.Outcome("wrong", 1.0, 0.1)

    monkeypatch.setattr(selfcheck, "_check", check)
    taken = []
    threads = [threading.Thread(target=lambda: taken.append(choose(on_device(), None))) for _ in range(4)]

    def all_at_once():
        for thread in threads:
            thread.start()
        assert begun.wait(20)
        go.set()
        for thread in threads:
            thread.join()

    with pytest.warns(UserWarning, match="self-check") as told:
        all_at_once()
    assert (made, taken, len(told)) == ([KEY], ["dense"] * 4, 1)


@pytest.fixture
def something_compiles():
    """Another thread compiles, and goes on until the test ends."""
    begun, over = threading.Event(), threading.Event()

    def backend(graph, inputs):
        begun.set()
        assert over.wait(60)
        return graph.forward

    compiled = torch.compile(lambda x: x.sin(), backend=backend)
    thread = threading.Thread(target=lambda: compiled(torch.ones(3)), daemon=True)
    thread.start()
    assert begun.wait(30)
    yield
    over.set()
    thread.join()
    torch.compiler.reset()


def in_a_thread(work):
    """What a thread finds within a minute; fails where it waits for itself."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(60)
    assert found, "it never came back"
    return found[0]


def test_a_failure_while_another_thread_compiles(monkeypatch, tiny, something_compiles):
    counted(monkeypatch, selfcheck.Outcome("wrong", 1.0, 0.1))
    x = torch.randn(1, 1, 5, 16, device=DEVICE)
    with pytest.warns(UserWarning, match="wrong"):
        found = in_a_thread(lambda: rg.relation_attention(x, x, x, None))
    torch.testing.assert_close(found, rg.relation_attention(x, x, x, None, impl="reference"))


def test_products_in_tf32_are_checked_for_themselves(monkeypatch):
    made = counted(monkeypatch)
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "highest"):
            torch.set_float32_matmul_precision(precision)
            assert choose(on_device(), None) == "triton"
    finally:
        torch.set_float32_matmul_precision(before)
    assert [one.tf32 for one in made] == [False, True]


def test_a_check_inside_backward_does_not_wait_for_itself(tiny):
    """The first use may be in a thread of autograd, which runs one node at a time."""

    class Late(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            assert selfcheck.make_sure(KEY).why is None
            return grad

    x = torch.ones(2, device=DEVICE, requires_grad=True)
    Late.apply(x).sum().backward()
    assert x.grad is not None


def test_nothing_is_checked_while_a_graph_is_recorded(monkeypatch):
    made = counted(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    pretended = KEY._replace(device=torch.device("cuda", 0))
    assert selfcheck.make_sure(pretended) is None
    assert not made
    assert not selfcheck._outcomes
    failed = selfcheck.Outcome("wrong", 1.0, 0.1)
    selfcheck._outcomes[pretended] = failed
    assert selfcheck.make_sure(pretended) is failed


# ---- traced calls ----


@pytest.fixture
def compiled():
    torch.compiler.reset()
    yield torch.compile(lambda x: rg.relation_attention(x, x, x, None), backend="aot_eager", fullgraph=True)
    torch.compiler.reset()


def test_a_traced_call_is_checked_when_it_runs(monkeypatch, compiled):
    made = counted(monkeypatch)
    x = torch.randn(1, 1, 5, 16, device=DEVICE)
    wanted = rg.relation_attention(x, x, x, None, impl="reference")
    torch.testing.assert_close(compiled(x), wanted)
    assert made == [KEY]
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    torch.testing.assert_close(compiled(x), wanted)
    assert len(made) == 1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before


def test_a_traced_call_raises_if_the_check_then_fails(monkeypatch, compiled):
    made = counted(monkeypatch, selfcheck.Outcome("output: 1.0e+00", 1.0, 0.1))
    x = torch.randn(1, 1, 5, 16, device=DEVICE)
    with pytest.warns(UserWarning, match="output: 1"), pytest.raises(RuntimeError, match="pass impl='chunked'"):
        compiled(x)
    with pytest.raises(RuntimeError, match=r"impl='triton' failed its self-check on .*: output: 1.0e\+00. This call"):
        compiled(x)
    assert len(made) == 1
    torch.compiler.reset()  # what is traced now knows
    torch.testing.assert_close(compiled(x), rg.relation_attention(x, x, x, None, impl="reference"))
