"""Dropout with a given seed: the parts of a problem make up the whole, outputs and gradients, for each implementation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import relgraph as rg
from relgraph.functional.merge import merge
from relgraph.impl import IMPLEMENTATIONS, budget
from relgraph.impl.chunked import blocks, groups
from relgraph.impl.eager import rows as by_rows
from relgraph.impl.native import build
from relgraph.impl.rule import choose, refusal
from tests.cases import F64, call_of

N, M, HEADS, KV_HEADS = 21, 23, 4, 2
IMPLS = ["reference", "dense", "chunked", "chunked by rows", "edges", "native"]
DRAW_ALIKE = ["dense", "chunked", "chunked by rows", "edges"]


def graph(ptr=None, parallel=False):
    """Some pairs, of which some come twice if they may attend twice."""
    generator = torch.Generator().manual_seed(2)
    chosen = torch.rand(M, N, generator=generator) < 0.4
    if ptr is not None:
        of_key, of_query = (torch.bucketize(torch.arange(n), p[1:], right=True) for n, p in ((M, ptr[1]), (N, ptr[0])))
        chosen &= of_key[:, None] == of_query
    index = chosen.nonzero().T
    if parallel:
        index = torch.cat([index, index[:, ::3]], 1)
    ids = torch.randint(0, 5, (index.shape[1],), generator=generator)
    borders = {} if ptr is None else {"ptr": ptr[1], "q_ptr": ptr[0]}
    return rg.EdgeLabels(index, ids, 5, q_len=N, k_len=M, **borders)


PTR = torch.tensor([0, 6, 13, N]), torch.tensor([0, 7, 15, M])
LABELS = {
    "distance": lambda: rg.labels.DistanceLabels(N, M, lookup=range(5), left=2),
    "packed distance": lambda: rg.labels.DistanceLabels(N, M, lookup=range(5), left=2, ptr=PTR[1], q_ptr=PTR[0]),
    "edges": graph,
    "packed edges": lambda: graph(PTR),
    "parallel edges": lambda: graph(parallel=True),
}


def same(scores):
    """A function of scores that only torch knows."""
    return scores * 1.0


class Problem:
    """Leaves and labels; a batch of two unless packed."""

    def __init__(self, kind):
        self.labels, self.packed = LABELS[kind](), kind.startswith("packed")
        generator = torch.Generator().manual_seed(1)

        def leaf(*shape):
            return torch.randn(*shape, dtype=F64, generator=generator).requires_grad_()

        sizes = ((N, HEADS, 4), (M, KV_HEADS, 4), (M, KV_HEADS, 3))
        if not self.packed:
            sizes = [(2, heads, n, d) for n, heads, d in sizes]
        self.leaves = [*(leaf(*size) for size in sizes), leaf(HEADS, 5, 4), leaf(HEADS, 5, 3)]
        self.grad = torch.randn(1 if self.packed else 2, HEADS, N, 3, dtype=F64, generator=generator)

    def part(self, impl, batch=(0, 2), heads=(0, HEADS), rows=(0, N), keys=(0, M), keep=None):
        """Output and log-sum-exp of a part, drawn at its place."""
        query, key, value, *tables = self.leaves
        group = HEADS // KV_HEADS
        of = slice(*heads), slice(heads[0] // group, heads[1] // group)
        if self.packed:
            batch = (0, 1)
            query = query[slice(*rows), of[0]]
            key, value = (x[slice(*keys), of[1]] for x in (key, value))
        else:
            query = query[slice(*batch), of[0], slice(*rows)]
            key, value = (x[slice(*batch), of[1], slice(*keys)] for x in (key, value))
        labels = self.labels.rows(*rows).cols(*keys)
        of_heads = (*(x[of[0]] for x in tables), None, None)
        score = same if impl == "chunked by rows" else None
        call = call_of(
            query, key, value, labels, *of_heads, dropout_p=0.4, enable_gqa=True, need_label_mass=True, score=score
        )
        if keep is None:
            origin = (batch[0], heads[0], rows[0], keys[0])
            call = replace(call, dropout_seed=torch.tensor(77), dropout_origin=origin)
        name = impl.split()[0]
        assert refusal(call, name) is None
        answer = IMPLEMENTATIONS[name](replace(call, keep=keep))
        return answer.output, answer.lse

    def grads(self, output):
        return torch.autograd.grad((output * self.grad).sum(), self.leaves)


def skip_what_cannot(impl, kind):
    if impl == "native" and build.missing() is not None:
        pytest.skip(f"no compiled kernels: {build.missing()}")
    if impl == "edges" and "edges" not in kind:
        pytest.skip("edges alone")
    if kind == "parallel edges" and impl in ("dense", "chunked", "chunked by rows"):
        pytest.skip("parallel edges attend separately")


def by_rows_of(problem, impl):
    return torch.cat([problem.part(impl, rows=rows)[0] for rows in ((0, 4), (4, 5), (5, N))], 2)


def by_heads_of(problem, impl):
    return torch.cat([problem.part(impl, heads=heads)[0] for heads in ((0, 2), (2, 4))], 1)


def by_keys_of(problem, impl):
    parts = [problem.part(impl, keys=keys) for keys in ((0, 9), (9, 10), (10, M))]
    return merge([z for z, _ in parts], [lse for _, lse in parts])[0]


def by_batch_of(problem, impl):
    if problem.packed:
        pytest.skip("one batch row")
    return torch.cat([problem.part(impl, batch=batch)[0] for batch in ((0, 1), (1, 2))])


@pytest.mark.parametrize("split", [by_rows_of, by_heads_of, by_keys_of, by_batch_of])
@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("impl", IMPLS)
def test_parts_make_up_the_whole(impl, kind, split):
    skip_what_cannot(impl, kind)
    problem = Problem(kind)
    whole, parts = problem.part(impl)[0], split(problem, impl)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    for mine, wanted in zip(problem.grads(parts), problem.grads(whole), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("impl", DRAW_ALIKE)
def test_all_that_draw_in_torch_draw_what_the_reference_does(impl, kind):
    skip_what_cannot(impl, kind)
    problem = Problem(kind)
    mine, wanted = problem.part(impl)[0], problem.part("reference")[0]
    torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-12)
    for got, right in zip(problem.grads(mine), problem.grads(wanted), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("room", [0, 600, 5000])
@pytest.mark.parametrize("impl", ["chunked", "chunked by rows"])
def test_sizes_of_blocks_do_not_change_the_mask(impl, room, kind, monkeypatch):
    skip_what_cannot(impl, kind)
    problem = Problem(kind)
    whole = problem.part(impl)[0]
    wanted = problem.grads(whole)
    monkeypatch.setattr(budget, "CPU_BYTES", room)
    for module, name, value in (
        (blocks, "BLOCK_SCORES", 60), (blocks, "BLOCK_ROWS", 3), (blocks, "FEWEST_ROWS", 2), (groups, "SMALL_PAIRS", 0),
        (by_rows, "BLOCK_NUMBERS", 100),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    again = problem.part(impl)[0]
    torch.testing.assert_close(again, whole, rtol=1e-12, atol=1e-12)
    for mine, right in zip(problem.grads(again), wanted, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["distance", "edges"])
def test_parts_of_any_size_are_drawn_alike_by_default(kind):
    """Were a small part dense and a large one native, they would not fit together."""
    x = torch.zeros(1, 1, 2048, 4, requires_grad=True)
    taken = set()
    for rows in (1, 7, 2048):
        pairs = torch.zeros(2, 1, dtype=torch.long)
        labels = None if kind == "distance" else rg.EdgeLabels(pairs, pairs[0], 1, q_len=rows, k_len=2048)
        call = call_of(x[:, :, :rows], x, x, labels, dropout_p=0.5)
        taken.add(choose(replace(call, dropout_seed=torch.tensor(1)), None))
    assert taken <= {"native"} or taken <= {"dense", "chunked", "edges"}
