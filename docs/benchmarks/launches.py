"""Count how many kernels a call launches on a GPU, and how often the host waits for it, without a GPU.

    python -m docs.benchmarks.launches            # every kind of labels and implementation at GPU sizes
    python -m docs.benchmarks.launches --quick    # at toy sizes
    python -m docs.benchmarks.launches --json     # the same as JSON

Without a GPU, the CPU runs the blocks that a GPU would get, and this counts the operators that would launch a kernel
(not views, not empty memory). With a GPU, the profiler counts the kernels themselves, and the waits of CUDA's runtime.
A first call lowers the labels; the second call is counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

import relgraph as rg
from docs.benchmarks.about import about, line
from docs.benchmarks.measure import markdown
from relgraph.impl import budget

HEADS, SIZE, LABELS = 8, 64, 33
GRAPHS = 256
DENSE_SCORES = 1 << 26
"""The most scores for which ``dense`` is counted; it holds about twenty numbers per score."""

NO_LAUNCH = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "_unsafe_view", "detach"}
"""Operators that torch does not count as views, although they start no kernel."""

SEVERAL = {"constant_pad_nd": 2}
"""Operators that start more than one kernel."""

WAITS = {"_local_scalar_dense", "nonzero", "is_nonzero", "item", "equal", "lift_fresh", "masked_select", "unique_dim",
         "_unique2", "unique_consecutive", "repeat_interleave.Tensor"}  # fmt: skip
"""Operators that make the host wait for a number from the GPU, or until the GPU has taken one (``lift_fresh``)."""

CUDA_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


class Counts(NamedTuple):
    """Kernel launches, and waits of the host."""

    launches: int
    waits: int


class Operators(TorchDispatchMode):
    """Counts operators by name: ``launches`` and ``waits``.

    The host draws and reads the seed of dropout, also with a GPU, so operators on the seed only do not count.
    """

    _of_host: ClassVar[Any] = WeakIdKeyDictionary()  # seeds, which backward reads again

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "relgraph":  # count the operators inside our own ops
            with self:
                return OPDEFS[func._schema.name]._init_fn(*args, **kwargs)
        name, overload = func.overloadpacket.__name__, str(func).removeprefix("aten.")
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        out = func(*args, **kwargs)
        on_host = bool(given) and all(x in self._of_host for x in given)
        if name == "randint" and out.dim() == 0:
            on_host = True
        if on_host:
            if isinstance(out, Tensor):
                self._of_host[out] = True
        elif name in WAITS or overload in WAITS or _picks_by_mask(name, args):
            self.waits[overload] += 1
        elif name not in NO_LAUNCH and not func.is_view:
            self.launches[overload] += SEVERAL.get(name, 1)
        return out

    def counts(self) -> Counts:
        """The totals."""
        return Counts(self.launches.total(), self.waits.total())


READS = ("tolist", "numpy", "cpu")
"""Tensor methods that wait for the tensor's numbers, for which a CPU runs no operator."""


@contextmanager
def counting() -> Iterator[Operators]:
    """Count what runs inside the block."""
    operators = Operators()

    def counted(name: str) -> Callable[..., Any]:
        method = getattr(Tensor, name)

        def read(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            operators.waits[name] += 1
            return method(x, *args, **kwargs)

        return read

    with ExitStack() as stack:
        for name in READS:
            stack.enter_context(patch.object(Tensor, name, counted(name)))
        stack.enter_context(operators)
        yield operators


def _picks_by_mask(name: str, args: Sequence[Any]) -> bool:
    """Whether the operator reads or writes entries where a mask is True: the host must know how many."""
    if name not in ("index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_"):
        return False
    return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])


class Case(NamedTuple):
    """One call to count.

    Attributes:
        name: the name of its labels, and its options.
        impl: the implementation.
        sizes: batch, heads and length, as in the table.
        make: makes the call and its trainable tensors.
    """

    name: str
    impl: str
    sizes: str
    make: Callable[[str], tuple[Callable[[], Tensor], list[Tensor]]]


def counted(case: Case, device: str = "cpu") -> tuple[Counts, Counts]:
    """Launches and waits of forward and backward, in the second call with the same labels."""
    call, leaves = case.make(device)
    torch.autograd.grad(call().sum(), leaves)
    output, forward = _count(call, device)
    grad = torch.ones_like(output)
    _, backward = _count(lambda: torch.autograd.grad(output, leaves, grad), device)
    return forward, backward


def _count(call: Callable[[], Any], device: str) -> tuple[Any, Counts]:
    if device == "cpu":
        with counting() as operators:
            result = call()
        return result, operators.counts()
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        result = call()
    events = profiled.events() or []
    kernels = sum(event.device_type == torch.autograd.DeviceType.CUDA for event in events)
    return result, Counts(kernels, sum(event.name in CUDA_WAITS for event in events))


@contextmanager
def blocks_of_a_gpu() -> Iterator[None]:
    """Use a GPU's block sizes on a CPU."""
    before = budget.CPU_BYTES
    budget.CPU_BYTES = budget.DEVICE_BYTES
    try:
        yield
    finally:
        budget.CPU_BYTES = before


def cases(quick: bool) -> list[Case]:
    """Every kind of labels at the largest size, some at other sizes, and options of a call."""
    large, *others = [(2, 96), (3, 40)] if quick else [(4, 2048), (8, 512), (32, 128)]
    found = [_sequences(name, impl, *large) for name in SEQUENCES for impl in ("chunked", "dense")]
    found += [_sequences("distance", "chunked", *large, option) for option in OPTIONS]
    found += [_sequences(name, impl, *size) for size in others for name in SEQUENCES for impl in ("chunked", "dense")]
    found = [case for case, scores in found if case.impl != "dense" or scores <= DENSE_SCORES]
    sizes = torch.arange(GRAPHS) % 21 + 20
    uneven = torch.cat([sizes, torch.tensor([300, 600])])
    for name in PACKED:
        found += [_packed(name, sizes[:9] if quick else sizes), _packed(name, uneven[-9:] if quick else uneven)]
    found.append(_edges_alone(*large))
    return found


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _some_edges(n: int, each: int) -> tuple[Tensor, Tensor]:
    """``each`` incoming edges for every node, and their types."""
    target = torch.arange(n).repeat_interleave(each)
    source = (target + 1 + 3 * (torch.arange(n * each) % each)) % n
    return torch.stack([source, target]), torch.randint(LABELS - 1, target.shape, generator=_generator())


SEQUENCES: dict[str, Callable[[int], rg.Labels]] = {
    "distance": lambda n: rg.ClippedDistance(16)(n),
    "distance buckets": lambda n: rg.BucketedDistance(LABELS - 1, 128)(n),
    "dense": lambda n: rg.DenseLabels(torch.randint(LABELS, (n, n), generator=_generator()), LABELS),
    "edges over a default": lambda n: rg.EdgeLabels(*_some_edges(n, 8), LABELS, q_len=n, default=LABELS - 1),
}

OPTIONS: dict[str, Callable[[Any, int, int], dict[str, Any]]] = {
    "query and bias tables": lambda made, *_: {"query_table": made(LABELS, SIZE), "bias_table": made(LABELS)},
    "a mask": lambda _, batch, n: {"attn_mask": torch.rand(batch, 1, n, n, generator=_generator()) > 0.1},
    "causal order": lambda *_: {"is_causal": True},
    "dropout": lambda *_: {"dropout_p": 0.1},
}


def _leaves(device: str) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """A function that makes trainable tensors, and the list of those that it made."""
    found: list[Tensor] = []

    def made(*shape: int) -> Tensor:
        found.append(torch.randn(shape, generator=_generator()).to(device).requires_grad_())
        return found[-1]

    return made, found


def _sequences(name: str, impl: str, batch: int, n: int, option: str | None = None) -> tuple[Case, int]:
    """A padded batch of sequences, and its number of scores."""

    def make(device: str) -> tuple[Callable[[], Tensor], list[Tensor]]:
        made, leaves = _leaves(device)
        labels = SEQUENCES[name](n).to(device)
        q, k, v = (made(batch, HEADS, n, SIZE) for _ in range(3))
        tables = made(labels.num_labels, SIZE), made(labels.num_labels, SIZE)
        options = {} if option is None else OPTIONS[option](made, batch, n)
        options = {key: x.to(device) if isinstance(x, Tensor) else x for key, x in options.items()}
        return lambda: rg.relation_attention(q, k, v, labels, *tables, impl=impl, **options), leaves

    full = name if option is None else f"{name}, {option}"
    return Case(full, impl, f"b{batch} h{HEADS} n{n}", make), batch * HEADS * n * n


PACKED: dict[str, Callable[[Tensor], rg.Labels]] = {
    "blocks": lambda ptr: rg.BlockLabels(
        torch.randint(LABELS, (int(ptr.diff().square().sum()),), generator=_generator()), LABELS, ptr
    ),
    "distance": lambda ptr: rg.ClippedDistance(16)(int(ptr[-1]), ptr=ptr),
}


def _packed(name: str, sizes: Tensor) -> Case:
    """A packed batch of graphs of these sizes."""
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])

    def make(device: str) -> tuple[Callable[[], Tensor], list[Tensor]]:
        made, leaves = _leaves(device)
        labels = PACKED[name](ptr).to(device)
        q, k, v = (made(int(ptr[-1]), HEADS, SIZE) for _ in range(3))
        tables = made(LABELS, SIZE), made(LABELS, SIZE)
        return lambda: rg.relation_attention(q, k, v, labels, *tables, impl="chunked"), leaves

    return Case(f"packed {name}", "chunked", f"{len(sizes)} graphs of {sizes.min()}-{sizes.max()}, h{HEADS}", make)


def _edges_alone(batch: int, n: int) -> Case:
    """Attention over eight edges per node."""

    def make(device: str) -> tuple[Callable[[], Tensor], list[Tensor]]:
        made, leaves = _leaves(device)
        labels = rg.EdgeLabels(*_some_edges(n, 8), LABELS, q_len=n).to(device)
        q, k, v = (made(batch, HEADS, n, SIZE) for _ in range(3))
        tables = made(LABELS, SIZE), made(LABELS, SIZE)
        return lambda: rg.relation_attention(q, k, v, labels, *tables, impl="edges"), leaves

    return Case("edges only", "edges", f"b{batch} h{HEADS} n{n}", make)


def main(given: Sequence[str] | None = None) -> int:
    """Print the counts."""
    parser = argparse.ArgumentParser(prog="python -m docs.benchmarks.launches", description=__doc__.split("\n")[0])  # pyright: ignore[reportOptionalMemberAccess]
    parser.add_argument("--quick", action="store_true", help="toy sizes")
    parser.add_argument("--only", default="", help="cases whose name or implementation contains this")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(given)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = [_row(case, device) for case in cases(arguments.quick) if arguments.only in f"{case.name} {case.impl}"]
    if arguments.json:
        print(json.dumps({"about": about(device), "rows": rows}, indent=1))
    else:
        print(markdown(rows))
        print(line(about(device)))
    return 0


def _row(case: Case, device: str) -> dict[str, Any]:
    found: dict[str, Any] = {"labels": case.name, "impl": case.impl, "size": case.sizes}
    with blocks_of_a_gpu():
        forward, backward = counted(case, device)
    for what, counts in (("forward", forward), ("backward", backward)):
        found[what], found[f"waits {what}"] = counts.launches, counts.waits
    return found


if __name__ == "__main__":
    sys.exit(main())
