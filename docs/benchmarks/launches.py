"""Count how many kernels a call launches on a GPU, and how often the host waits for it, without a GPU.

    python -m docs.benchmarks.launches

The CPU runs the blocks that a GPU would get, and this counts the operators that would launch a kernel (not views, not
empty memory). A first call lowers the labels; the second call is counted.
"""

from __future__ import annotations

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
from docs.benchmarks.about import publish
from docs.benchmarks.measure import Rows
from relgraph.impl import budget

HEADS, SIZE, LABELS = 8, 64, 33
DENSE_SCORES = 1 << 26
"""The most scores for which ``dense`` is counted; it holds about twenty numbers per score."""

NO_LAUNCH = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "_unsafe_view", "detach"}
"""Operators that torch does not count as views, although they start no kernel."""

SEVERAL = {"constant_pad_nd": 2}
"""Operators that start more than one kernel."""

WAITS = {"_local_scalar_dense", "nonzero", "is_nonzero", "item", "equal", "lift_fresh", "masked_select", "unique_dim",
         "_unique2", "unique_consecutive", "repeat_interleave.Tensor"}  # fmt: skip
"""Operators that make the host wait for a number from the GPU, or until the GPU has taken one (``lift_fresh``)."""


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


def counted(labels: rg.Labels, impl: str, batch: int, n: int) -> tuple[Counts, Counts]:
    """Launches and waits of forward and backward with key and value tables, in the second call with the labels."""
    q, k, v = (torch.randn(batch, HEADS, n, SIZE, requires_grad=True) for _ in range(3))
    tables = [torch.randn(labels.num_labels, SIZE, requires_grad=True) for _ in range(2)]

    def call() -> Tensor:
        return rg.relation_attention(q, k, v, labels, *tables, impl=impl)

    torch.autograd.grad(call().sum(), [q, k, v, *tables])
    with counting() as forward:
        output = call()
    grad = torch.ones_like(output)
    with counting() as backward:
        torch.autograd.grad(output, [q, k, v, *tables], grad)
    return forward.counts(), backward.counts()


def _some_edges(n: int, each: int) -> tuple[Tensor, Tensor]:
    """``each`` incoming edges for every node, and their types."""
    target = torch.arange(n).repeat_interleave(each)
    source = (target + 1 + 3 * (torch.arange(n * each) % each)) % n
    return torch.stack([source, target]), torch.randint(LABELS - 1, target.shape)


SEQUENCES: dict[str, Callable[[int], rg.Labels]] = {
    "distance": lambda n: rg.ClippedDistance(16)(n),
    "distance buckets": lambda n: rg.BucketedDistance(LABELS - 1, 128)(n),
    "dense": lambda n: rg.DenseLabels(torch.randint(LABELS, (n, n)), LABELS),
    "edges over a default": lambda n: rg.EdgeLabels(*_some_edges(n, 8), LABELS, q_len=n, default=LABELS - 1),
}


def main() -> None:
    """Print the counts."""
    torch.manual_seed(0)
    budget.CPU_BYTES = budget.DEVICE_BYTES
    rows: Rows = []
    for batch, n in ((4, 2048), (8, 512), (32, 128)):
        for name, labels in SEQUENCES.items():
            for impl in ("chunked", "dense"):
                if impl == "chunked" or batch * HEADS * n * n <= DENSE_SCORES:
                    forward, backward = counted(labels(n), impl, batch, n)
                    rows.append({
                        "labels": name, "impl": impl, "size": f"b{batch} h{HEADS} n{n}", "forward": forward.launches,
                        "backward": backward.launches, "waits": forward.waits + backward.waits,
                    })  # fmt: skip
    publish(rows)


if __name__ == "__main__":
    main()
