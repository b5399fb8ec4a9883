"""Labels of every kind and calls of every sort, for the suites that hold all implementations to the reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from unittest.mock import patch

import torch
from torch import Tensor

import relgraph as rg
from relgraph.call import check_call
from relgraph.call.operands import POSITIONAL
from relgraph.functional.attention import answer_to
from relgraph.labelers.sequence.function import OwnFunction
from relgraph.labels import (
    BlockLabels,
    DenseLabels,
    DistanceLabels,
    EdgeLabels,
    Labels,
    SumLabels,
    function,
)

F64 = torch.float64


def distance(q_len, k_len=None, *, reach=2, **options) -> DistanceLabels:
    return DistanceLabels(q_len, k_len, lookup=range(2 * reach + 1), left=reach, **options)


def edges(q_len, k_len=None, *, count=None, batch=None, generator=None):
    """Edges without repetition: (edge_index, ids in [-1, 3), batch or None)."""
    k_len = q_len if k_len is None else k_len
    pairs = q_len * k_len * (batch or 1)
    order = torch.randperm(pairs, generator=generator)[: count if count is not None else pairs // 3]
    index = torch.stack([order % k_len, order // k_len % q_len]) if pairs else torch.zeros(2, 0, dtype=torch.long)
    ids = torch.randint(-1, 3, order.shape, generator=generator)
    return index, ids, (order // max(q_len * k_len, 1) if batch else None)


def parallel_edges(q_len):
    index, ids, _ = edges(q_len)
    return torch.cat([index, index[:, : index.shape[1] // 2]], 1), torch.cat([ids, ids[: ids.shape[0] // 2].flip(0)])


def pointers(n) -> Tensor:
    """Borders of a packed batch with an empty graph, a graph of one node and uneven others."""
    cuts = [0, n // 3, n // 3, min(n // 3 + 1, n), n]
    return torch.tensor(cuts)


def packed_edges(ptr):
    index, ids = [], []
    for a, b in zip(ptr.tolist(), ptr.tolist()[1:], strict=False):
        one, label, _ = edges(b - a)
        index.append(one + a)
        ids.append(label)
    return torch.cat(index, 1), torch.cat(ids)


def attending(*shape) -> Tensor:
    return torch.rand(shape) > 0.3


def fifths(i: Tensor, j: Tensor) -> Tensor:
    """Ids by a function of the positions, in [-1, 4)."""
    return (i * j + i) % 5 - 1


def computed(make):
    """What ``make`` returns, where no labels by function are few enough to be written out."""
    with patch.object(function, "FEW_PAIRS", 0):
        return make()


def _function(n, k_len=None, offset=0):
    i, j = torch.arange(n) + offset, torch.arange(n if k_len is None else k_len)
    return computed(lambda: function.by_function(OwnFunction(fifths, 4), (i,), (j,), 4))


def _function_packed(n):
    ptr = pointers(n)
    here = torch.cat([torch.arange(size) for size in ptr.diff()])
    return computed(lambda: function.packed_by_function(OwnFunction(fifths, 4), (here,), (here,), 4, ptr, ptr))


def _window_packed(n):
    return DistanceLabels(n, lookup=[-2, -1, -1, -1, -2], left=2, ptr=pointers(n))


def _edges_over_function_batch(n):
    index, ids, batch = edges(n, batch=2)
    return EdgeLabels(index, ids, 4, q_len=n, default=_function(n), batch=batch, batch_size=2)


def _sum(n):
    index, ids, _ = edges(n)
    return SumLabels(distance(n), EdgeLabels(index, ids, 3, q_len=n), DenseLabels(torch.randint(-1, 2, (n, n)), 2))


def _sum_batch(n):
    index, ids, batch = edges(n, batch=2)
    again = slice(0, index.shape[1] // 2)
    index, ids, batch = (torch.cat([x, x[..., again]], -1) for x in (index, ids, batch))
    return EdgeLabels(index, ids, 4, q_len=n, default=3, batch=batch, batch_size=2, duplicates="sum")


def _nested(n):
    (outer, outer_ids, batch), (inner, inner_ids, _) = edges(n, batch=2), edges(n)
    base = EdgeLabels(inner, inner_ids, 5, q_len=n, default=distance(n), duplicates="sum")
    return EdgeLabels(outer, outer_ids, 5, q_len=n, default=base, batch=batch, batch_size=2, duplicates="sum")


KINDS = {
    "distance": lambda n: distance(n),
    "distance wide": lambda n: distance(n, reach=max(2 * n, 1)),
    "distance window": lambda n: DistanceLabels(n, lookup=[-2, 0, 1, -1, 1, -2], left=3),
    "distance one-sided": lambda n: DistanceLabels(n, lookup=[0, 1, 2, -2], left=2),
    "distance uniform": lambda n: DistanceLabels(n, lookup=[1, 1, 1], left=1),
    "distance nowhere": lambda n: DistanceLabels(n, lookup=[-2, -2], left=0, num_labels=1),
    "distance cross": lambda n: distance(n, 2 * n + 3, q_offset=n + 3),
    "distance before": lambda n: distance(n, q_offset=-2),
    "distance per row": lambda n: distance(n, n + 4, q_offset=torch.tensor([4, 1])),
    "distance scalar tensor": lambda n: distance(n, n + 4, q_offset=torch.tensor(4)),
    "distance packed": lambda n: distance(n, ptr=pointers(n)),
    "distance packed offsets": lambda n: distance(n, ptr=pointers(n), q_offset=torch.tensor([0, 1, 2, 1])),
    "dense": lambda n: DenseLabels(torch.randint(0, 4, (n, n)), 4),
    "dense batch": lambda n: DenseLabels(torch.randint(-1, 3, (2, n, n + 1)), 3, attend=attending(2, n, n + 1)),
    "block": lambda n: BlockLabels(
        torch.randint(-1, 3, (s := int((pointers(n).diff() ** 2).sum()),)), 3, pointers(n), attend=attending(s)
    ),
    "edges only": lambda n: EdgeLabels(*edges(n)[:2], 3, q_len=n),
    "edges only batch": lambda n: (
        (e := edges(n, batch=2)) and EdgeLabels(e[0], e[1], 3, q_len=n, batch=e[2], batch_size=2)
    ),
    "edges only parallel": lambda n: EdgeLabels(*parallel_edges(n), 3, q_len=n),
    "edges only packed": lambda n: EdgeLabels(*packed_edges(pointers(n)), 3, q_len=n, ptr=pointers(n)),
    "edges default": lambda n: EdgeLabels(*edges(n)[:2], 4, q_len=n, default=3),
    "edges default cross": lambda n: EdgeLabels(*edges(n, n + 2)[:2], 4, q_len=n, k_len=n + 2, default=-1),
    "edges default packed": lambda n: EdgeLabels(*packed_edges(pointers(n)), 4, q_len=n, ptr=pointers(n), default=3),
    "edges first": lambda n: EdgeLabels(*parallel_edges(n), 4, q_len=n, default=3, duplicates="first"),
    "edges sum": lambda n: EdgeLabels(*parallel_edges(n), 4, q_len=n, default=3, duplicates="sum"),
    "edges sum batch": _sum_batch,
    "edges over distance": lambda n: EdgeLabels(*edges(n)[:2], 5, q_len=n, default=distance(n)),
    "edges over distance packed": lambda n: EdgeLabels(
        *packed_edges(pointers(n)), 5, q_len=n, ptr=pointers(n), default=distance(n, ptr=pointers(n))
    ),
    "edges over dense": lambda n: EdgeLabels(
        *edges(n)[:2], 4, q_len=n, default=DenseLabels(torch.randint(-1, 4, (2, n, n)), 4, attend=attending(2, n, n))
    ),
    "edges over block": lambda n: EdgeLabels(
        *packed_edges(pointers(n)),
        4,
        q_len=n,
        ptr=pointers(n),
        default=BlockLabels(torch.randint(-1, 4, (int((pointers(n).diff() ** 2).sum()),)), 4, pointers(n)),
    ),
    "edges over edges": _nested,
    "function": _function,
    "function per row": lambda n: _function(n, n + 4, torch.tensor([[4], [1]])),
    "function packed": _function_packed,
    "function window": lambda n: _function(n) & DistanceLabels(n, lookup=[-2, -1, -2], left=1),
    "function packed window": lambda n: _function_packed(n) * distance(n, ptr=pointers(n)) & _window_packed(n),
    "edges over function packed": lambda n: EdgeLabels(
        *packed_edges(pointers(n)), 4, q_len=n, ptr=pointers(n), default=_function_packed(n)
    ),
    "edges over function batch": _edges_over_function_batch,
    "sum": _sum,
    "none": lambda n: None,
}


WRITES = {
    "in place": lambda x, new: x.copy_(new),
    "data": lambda x, new: x.data.copy_(new),
    "another tensor's data": lambda x, new: setattr(x, "data", new.clone()),
    "storage": lambda x, new: x.untyped_storage().copy_(new.contiguous().untyped_storage()),
    "dlpack": lambda x, new: torch.from_dlpack(x).copy_(new),
    "numpy": lambda x, new: x.numpy().__setitem__(..., new.numpy()),
}
"""Ways to write into a tensor, of which torch counts the first only."""


@dataclass
class Case:
    """One call; all tensors that need a gradient are float64 leaves."""

    labels: Labels | None
    inputs: list[Tensor]  # query, key, value
    tables: list  # key, value, query, bias; each None, a tensor or a tuple
    options: dict

    @property
    def leaves(self) -> list[Tensor]:
        flat = [t for table in self.tables for t in (table if isinstance(table, tuple) else (table,)) if t is not None]
        mask = self.options.get("attn_mask")
        return [
            *self.inputs,
            *flat,
            *([mask] if mask is not None and mask.requires_grad else []),
        ]


def make(
    labels, *, n=7, heads=2, kv_heads=2, size=3, value_size=4, kinds="kvqb", per_head="", batched="", batch=2, dtype=F64,
    **options,
) -> Case:  # fmt: skip
    """A call on ``labels`` with the tables whose initials are in ``kinds``; those in ``batched`` have a batch axis."""
    if labels is None:
        q_len = k_len = n
    else:
        q_len, k_len, batch = labels.q_len, labels.k_len, max(labels.batch_size, batch)
    packed = labels is not None and labels.packed
    shapes = ((heads, q_len, size), (kv_heads, k_len, size), (kv_heads, k_len, value_size))

    def leaf(*shape):
        return torch.randn(shape, dtype=dtype, requires_grad=True)

    inputs = [leaf(s[1], s[0], s[2]) if packed else leaf(batch, *s) for s in shapes]
    sizes = () if labels is None else labels.num_labels
    sizes = (sizes,) if isinstance(sizes, int) else sizes
    tables = []
    for initial, width in (("k", size), ("v", value_size), ("q", size), ("b", None)):
        own = (heads,) if initial in per_head else ()
        own = (batch, *(own or (1,))) if initial in batched else own
        made = tuple(leaf(*own, r, *(() if width is None else (width,))) for r in sizes) if initial in kinds else ()
        tables.append(None if not made else made if len(made) > 1 else made[0])
    return Case(labels, inputs, tables, {"enable_gqa": kv_heads != heads, **options})


def moved(case: Case, device) -> Case:
    """The case on a device, its leaves new ones."""

    def leaf(x):
        if isinstance(x, tuple):
            return tuple(leaf(part) for part in x)
        return None if x is None else x.detach().to(device).requires_grad_()

    labels = None if case.labels is None else case.labels.to(device)
    options = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in case.options.items()}
    return Case(labels, [leaf(x) for x in case.inputs], [leaf(x) for x in case.tables], options)


def answer(case: Case, impl: str, *, keep=None, mass=True):
    """Outputs and the gradient of a random linear function of them with respect to every leaf."""
    z, *rest = raw(case, impl, keep=keep, mass=mass)
    outputs = [z, *rest]
    generator = torch.Generator().manual_seed(1)
    total = 0.0
    for out in outputs:
        weight = torch.randn(out.shape, generator=generator, dtype=F64).to(out)
        total = total + (out.masked_fill(out == float("-inf"), 0.0) * weight).sum()
    leaves = case.leaves
    grads = torch.autograd.grad(total, leaves, allow_unused=True)
    return outputs, [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)]


def raw(case: Case, impl: str | None, *, keep=None, mass=True) -> list[Tensor]:
    """Output, log-sum-exp and label masses; ``keep`` is a given dropout mask, the hook that makes dropout comparable."""
    got = _answered(case, impl, keep, need_label_mass=mass and case.labels is not None)
    return [got.output, got.lse, *(got.mass or ())]


def attention_weights(case: Case) -> tuple[Tensor, Tensor]:
    """The reference's attention weights and log-sum-exp, laid out as a mask would be."""
    with torch.no_grad():
        got = _answered(case, "reference", None, need_weights=True)
    return (got.weights[0], got.lse[0]) if packed_or_not(case.labels) else (got.weights, got.lse)


def _answered(case: Case, impl: str | None, keep, **wanted):
    call = call_of(*case.inputs, case.labels, *case.tables, **case.options, **wanted)
    return answer_to(replace(call, keep=keep), impl)


def call_of(*arguments, **options):
    """The checked call of the arguments of ``relation_attention_with_aux``."""
    return check_call({**dict(zip(POSITIONAL, arguments, strict=False)), **options})


def assert_same(got, wanted, atol=1e-10, what=""):
    for index, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert a.shape == b.shape, f"{what} #{index}: {a.shape} {b.shape}"
        torch.testing.assert_close(a, b, atol=atol, rtol=0.0, msg=lambda m, i=index: f"{what} #{i}: {m}")


def packed_or_not(labels) -> bool:
    return labels is not None and labels.packed


__all__ = [
    "KINDS",
    "WRITES",
    "Case",
    "answer",
    "assert_same",
    "attention_weights",
    "call_of",
    "distance",
    "edges",
    "make",
    "moved",
    "packed_or_not",
    "raw",
    "rg",
]
