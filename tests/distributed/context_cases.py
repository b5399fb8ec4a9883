"""Calls of attention in which rows are split over processes, compared with one process."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import torch
from torch import distributed

import relgraph as rg
from relgraph.functional.region import entered
from tests.distributed.worlds import BY_PLACE, caught

N, B, H, D, R = 16, 2, 4, 8, 5
LAYOUTS = ("even", "head-tail")
PTR = torch.tensor([0, 3, 9, 9, 16])
LABELER = rg.ClippedDistance(2)


def random_edges(packed=False):
    """Different edges with ids; within the graphs of ``PTR`` if packed."""
    generator = torch.Generator().manual_seed(0)
    edges = torch.unique(torch.randint(N, (2, 60), generator=generator), dim=1)
    if packed:
        graph = torch.searchsorted(PTR[1:], edges, right=True)
        edges = edges[:, graph[0] == graph[1]]
    return edges, torch.randint(R, (edges.shape[1],), generator=generator)


def edge_labels(default=None, packed=False):
    return rg.EdgeLabels(*random_edges(packed), R, q_len=N, default=default, ptr=PTR if packed else None)


def block_labels():
    generator = torch.Generator().manual_seed(1)
    count = int(PTR.diff().square().sum())
    return rg.BlockLabels(torch.randint(-1, R, (count,), generator=generator), R, PTR)


def dense_labels(batch=1):
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(-1, R, (batch, N, N), generator=generator)
    return rg.DenseLabels(ids, R, attend=torch.rand(batch, N, N, generator=generator) < 0.8)


def softcap():
    return rg.score.Softcap(3.0)


def additive():
    torch.manual_seed(3)
    return rg.score.Additive(torch.randn(H, D, dtype=torch.float64).requires_grad_())


def bilinear():
    torch.manual_seed(3)
    return rg.score.Bilinear(torch.randn(H, R, D, D, dtype=torch.float64).requires_grad_())


class Curve(torch.nn.Module):
    """A function of scores with parameters, one of which a module within it uses too."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.PReLU(init=0.4, dtype=torch.float64)
        self.slope = self.inner.weight
        self.height = torch.nn.Parameter(torch.full((), 1.3, dtype=torch.float64))

    def forward(self, x):
        return self.height * torch.tanh(self.slope * x) + self.inner(x)


def learned_activation():
    return rg.score.Additive(additive().weight, Curve())


CASES = {
    "distance": (lambda: LABELER(N), {}),
    "distance causal": (lambda: LABELER(N), {"is_causal": True}),
    "distance with an offset": (lambda: rg.ClippedDistance(2)(N, q_offset=1), {"is_causal": True}),
    "no labels": (lambda: None, {"is_causal": True}),
    "dense": (dense_labels, {}),
    "dense by batch row": (lambda: dense_labels(B), {"is_causal": True}),
    "edges only": (edge_labels, {}),
    "edges over an id": (lambda: edge_labels(0), {"is_causal": True}),
    "edges over labels": (lambda: edge_labels(LABELER(N)), {}),
    "sum": (lambda: rg.SumLabels(LABELER(N), edge_labels(0)), {"is_causal": True}),
    "packed distance": (lambda: rg.DistanceLabels(N, lookup=range(R), left=2, ptr=PTR), {"is_causal": True}),
    "packed blocks": (block_labels, {}),
    "packed edges": (lambda: edge_labels(packed=True), {}),
    "packed edges over an id": (lambda: edge_labels(0, packed=True), {"is_causal": True}),
    "key heads": (lambda: LABELER(N), {"heads": 2 * H}),
    "mask of keys": (lambda: LABELER(N), {"mask": (1, 1, 1, N)}),
    "mask of pairs": (lambda: LABELER(N), {"mask": (B, H, N, N)}),
    "softcap": (lambda: LABELER(N), {"score": softcap}),
    "additive score": (lambda: LABELER(N), {"score": additive, "query_table": False}),
    "score with parameters": (lambda: LABELER(N), {"score": Curve, "is_causal": True}),
    "activation with parameters": (lambda: LABELER(N), {"score": learned_activation, "query_table": False}),
    "bilinear score": (lambda: LABELER(N), {"score": bilinear}),
    "maps of values": (lambda: LABELER(N), {"maps": True}),
    "scores by row": (lambda: LABELER(N), {"rows": True}),
    "biases of queries": (lambda: LABELER(N), {"biases": True}),
    "sink": (lambda: LABELER(N), {"sink": True, "is_causal": True}),
    "sink packed": (block_labels, {"sink": True}),
    "gates": (lambda: LABELER(N), {"gates": True, "is_causal": True}),
    "gates on edges": (edge_labels, {"gates": True}),
    "tables by batch row": (lambda: LABELER(N), {"batched": True}),
    "dropout": (lambda: LABELER(N), {"dropout_p": 0.4, "impl": BY_PLACE}),
    "dropout causal": (lambda: LABELER(N), {"dropout_p": 0.4, "impl": BY_PLACE, "is_causal": True}),
    "dropout on edges": (edge_labels, {"dropout_p": 0.4, "impl": BY_PLACE}),
    "dropout on blocks": (block_labels, {"dropout_p": 0.4, "impl": BY_PLACE}),
}


class Problem:
    """One call: tensors that need a gradient, what is cut by rows, and the rest."""

    def __init__(self, labels, options):
        options = dict(options)
        torch.manual_seed(4)
        self.labels, self.axis = labels, 0 if labels is not None and labels.packed else 2
        heads = options.pop("heads", H)
        batched = options.pop("batched", False)
        self.rows = [self.inputs(heads), self.inputs(H), self.inputs(H)]
        self.tables = [None] * 4
        kinds = [True, True, options.pop("query_table", True), True]
        options.setdefault("enable_gqa", heads != H)
        if labels is not None:
            shapes = [([], [D]), ([heads], [D]), ([], [D]), ([heads], [])]
            self.tables = [
                self.table(labels.num_labels, *shape, batched) if kind else None
                for kind, shape in zip(kinds, shapes, strict=True)
            ]
        self.mask = None
        if "mask" in options:
            self.mask = learned(*options.pop("mask"))
        self.by_row = None
        if options.pop("rows", False):
            self.by_row, self.tables[0] = learned(B, heads, N, R), None
        if options.pop("maps", False):
            options["value_map"] = learned(R, 3), learned(heads, 3, D, D)
        if options.pop("biases", False):
            options |= {"content_bias": learned(heads, D), "position_bias": learned(heads, D)}
        if options.pop("gates", False):
            options |= {"key_gate": learned(R, D), "value_gate": learned(heads, R, D)}
        if options.pop("sink", False):
            options["sink"] = learned(heads)
        if "score" in options:
            options["score"] = options["score"]()
        self.options = options

    def inputs(self, heads):
        return learned(N, heads, D) if self.axis == 0 else learned(B, heads, N, D)

    def table(self, num_labels, heads, size, batched):
        if isinstance(num_labels, tuple):
            return tuple(self.table(labels, heads, size, batched) for labels in num_labels)
        own = [num_labels, *size]
        return learned(B, *(heads or [1]), *own) if batched else learned(*heads, *own)

    def learned(self):
        """All that has a gradient."""
        score = self.options.get("score")
        parts = [self.rows, self.tables, self.mask, self.by_row, *rg.score.compatibility(score).tensors()]
        parts += [
            self.options.get(name)
            for name in ("value_map", "content_bias", "position_bias", "sink", "key_gate", "value_gate")
        ]
        return [x for x in torch.utils._pytree.tree_leaves(parts) if x is not None]

    def call(self, shard=None):
        """Output and what was asked for; of the rows of a process if ``shard`` cuts them."""
        torch.manual_seed(5)
        cut = shard or (lambda x, _: x)
        mask = self.mask
        if mask is not None:
            mask = cut(mask, 2) if mask.shape[2] > 1 else cut(mask, 3)
        return rg.relation_attention_with_aux(
            *(cut(x, self.axis) for x in self.rows), self.labels, *self.tables, attn_mask=mask,
            row_scores=None if self.by_row is None else cut(self.by_row, 2),
            need_lse=True, need_label_mass=self.labels is not None, **self.options,
        )  # fmt: skip


def learned(*shape):
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def loss_of(z, aux):
    """A sum over rows in which output, log-sum-exp and label mass count."""
    masses = aux.label_mass if isinstance(aux.label_mass, tuple) else [aux.label_mass]
    parts = [z.sin().sum(), (aux.lse.nan_to_num(neginf=0.0) * 0.1).cos().sum()]
    parts += [mass.square().sum() for mass in masses if mass is not None]
    return sum(parts)


def compare(mesh, name, layout):
    """The largest differences from one process: of output, log-sum-exp, mass, and all gradients."""
    labels, options = CASES[name]
    problem, rank = Problem(labels(), options), mesh.get_local_rank()
    z, aux = problem.call()
    wanted = torch.autograd.grad(loss_of(z, aux), problem.learned(), allow_unused=True)
    with rg.distributed.context_parallel(mesh, layout=layout) as region:
        rows = region.layout_of(N)
        mine, its = problem.call(lambda x, dim: rows.shard(x, rank, dim))
        got = torch.autograd.grad(loss_of(mine, its), problem.learned(), allow_unused=True)
    axis = 0 if problem.axis == 0 else 2
    values = [(mine, rows.shard(z, rank, axis)), (its.lse, rows.shard(aux.lse, rank, axis))]
    if aux.label_mass is not None:
        both = [m if isinstance(m, tuple) else (m,) for m in (its.label_mass, aux.label_mass)]
        values += [(a, rows.shard(b, rank, axis)) for a, b in zip(*both, strict=True)]
    for a, b in zip(got, wanted, strict=True):
        if b is None:
            assert a is None or not a.any()
            continue
        total = torch.zeros_like(b) if a is None else a.clone()
        distributed.all_reduce(total)
        values.append((total, b))
    return [float((finite(a) - finite(b)).abs().max()) for a, b in values]


def finite(x):
    return x.detach().nan_to_num(neginf=-1e9)


def odd_heads(mesh):
    """Three heads go in groups of two and one; each reads the tables of its own."""
    problem, rank = Problem(LABELER(N), {"heads": 3}), mesh.get_local_rank()
    problem.rows = [problem.inputs(3) for _ in range(3)]
    problem.options["enable_gqa"] = False
    z, aux = problem.call()
    wanted = torch.autograd.grad(loss_of(z, aux), problem.rows)
    with rg.distributed.context_parallel(mesh) as region:
        rows = region.layout_of(N)
        mine, its = problem.call(lambda x, dim: rows.shard(x, rank, dim))
        got = torch.autograd.grad(loss_of(mine, its), problem.rows)
    for grad in got:
        distributed.all_reduce(grad)
    pairs = [(mine, rows.shard(z, rank, 2)), *zip(got, wanted, strict=True)]
    return [float((a - b).abs().max()) for a, b in pairs]


def wrong_table(mesh):
    """A table for the heads of a part is not one for all heads."""
    q, table = torch.randn(1, 4, N // mesh.size(), D), torch.randn(2, R, D)
    with rg.distributed.context_parallel(mesh):
        rg.relation_attention(q, q, q, LABELER(N), table)
    return "no error"


def run_in_thread(work):
    """What ``work`` gives, computed in a new thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(caught(work)))
    thread.start()
    thread.join()
    return found[0]


def checkpointed(mesh, kind, place, threaded):
    """The gradients of two checkpointed calls of which ``place`` says what runs within the region."""
    rank, rows = mesh.get_local_rank(), rg.distributed.Layout(N, mesh.size())
    torch.manual_seed(6)
    whole, table = learned(1, H, N, D), learned(R, D)

    def twice(x):
        for _ in range(2):
            x = rg.relation_attention(x.sin(), x.cos(), x, LABELER(x.shape[2] * size), table)
        return x

    def forward(x):
        return torch.utils.checkpoint.checkpoint(twice, x, use_reentrant=kind == "reentrant")

    def backward(loss):
        run_in_thread(loss.backward) if threaded else loss.backward()

    size = 1
    twice(whole).sin().sum().backward()
    wanted, whole.grad, table.grad = [whole.grad, table.grad], None, None
    mine = whole.detach() if place == "backward" else rows.shard(whole.detach(), rank, 2)
    mine.requires_grad_()
    block = rg.distributed.context_parallel(mesh)
    if place == "backward":  # a forward on whole rows before the block
        loss = forward(mine).sin().sum()
        with block:
            backward(loss)
        return [float((x.grad - y).abs().max()) for x, y in zip([mine, table], wanted, strict=True)]
    with block:
        size = mesh.size()
        loss = forward(mine).sin().sum()
        if place == "both":
            backward(loss)
    if place == "forward":
        backward(loss)
    distributed.all_reduce(table.grad)
    pairs = [(mine.grad, rows.shard(wanted[0], rank, 2)), (table.grad, wanted[1])]
    return [float((x - y).abs().max()) for x, y in pairs]


CHECKPOINTS = [
    (kind, place, threaded != (kind == "other"))
    for kind in ("reentrant", "other")
    for place, threaded in (("both", False), ("forward", True), ("backward", False))
]


def in_another_thread(mesh):
    """Another thread attends to what it has, on one process alone."""
    x = torch.randn(1, H, 4, D)
    wanted = rg.relation_attention(x, x, x, LABELER(4), torch.ones(R, D))
    with rg.distributed.context_parallel(mesh):
        if mesh.get_local_rank():
            return ["not here"]
        return [
            run_in_thread(lambda: torch.equal(rg.relation_attention(x, x, x, LABELER(4), torch.ones(R, D)), wanted))
        ]


MASKS = {
    "pairs": (1, (B, 1, "rows", "all")),
    "pairs of heads": (1, (B, H, "rows", "all")),
    "keys": (1, (B, 1, 1, "own")),
    "keys without heads": (1, ("own",)),
    "all keys": (1, (B, 1, 1, "all")),
    "pairs with one number for all keys": (2, (B, 1, "rows", 1)),
    "one number": (2, (1,)),
    "one number without axes": (2, ()),
}
"""How many rows each process holds, and the axes of a mask, whole or cut."""


def masked(mesh, name):
    """The differences of calls with a mask, and with others that look alike on a process with one row."""
    length, axes = MASKS[name]
    total, rank = length * mesh.size(), mesh.get_local_rank()
    runs = rg.distributed.Layout(total, mesh.size())
    torch.manual_seed(7)
    x, table, values = torch.randn(B, H, total, D).double(), learned(R, D).detach(), []

    def own(whole, of_mask):
        for axis, size in enumerate(of_mask):
            whole = runs.shard(whole, rank, axis) if size in ("rows", "own") else whole
        return whole

    with rg.distributed.context_parallel(mesh):
        for of_mask in (axes, (B, 1, "rows", "all"), (1, "all")):
            whole = learned(*(size if isinstance(size, int) else total for size in of_mask))
            mine = own(whole.detach(), of_mask).requires_grad_()
            z = rg.relation_attention(*[runs.shard(x, rank, 2)] * 3, LABELER(total), table, attn_mask=mine)
            z.sin().sum().backward()
            with entered(None):
                wanted = rg.relation_attention(x, x, x, LABELER(total), table, attn_mask=whole)
                wanted.sin().sum().backward()
            found = torch.zeros_like(mine) if mine.grad is None else mine.grad
            if not {"rows", "own"} & set(of_mask):
                distributed.all_reduce(found)
            values += [(z - runs.shard(wanted, rank, 2)).detach(), found - own(whole.grad, of_mask)]
    return [float(x.abs().sum()) for x in values]


def hidden_by_the_lowest_number(mesh):
    """The differences where a row's mask is the lowest number for all keys, as Hugging Face writes it: all count alike."""
    rank, rows = mesh.get_local_rank(), rg.distributed.Layout(N, mesh.size())
    torch.manual_seed(8)
    x, mask, found = torch.randn(1, H, N, D), torch.zeros(N, N), []
    mask[3::4] = torch.finfo(mask.dtype).min
    for split in (False, True):
        own = (rows.shard(x, rank, 2) if split else x.clone()).requires_grad_()
        block = rg.distributed.context_parallel(mesh) if split else nullcontext()
        with block:
            z = rg.relation_attention(own, own, own, None, attn_mask=rows.shard(mask, rank, 0) if split else mask)
            z.sin().sum().backward()
        found.append([z.detach(), own.grad])
    return [float((b - rows.shard(a, rank, 2)).abs().max()) for a, b in zip(*found, strict=True)]


def all_cases(mesh):
    yield "odd heads", caught(lambda: odd_heads(mesh))
    yield "wrong table", caught(lambda: wrong_table(mesh))
    if mesh.size() == 2:
        yield "lowest", caught(lambda: hidden_by_the_lowest_number(mesh))
        yield "thread", caught(lambda: in_another_thread(mesh))
        for how in CHECKPOINTS:
            yield ("checkpoint", *how), caught(lambda: checkpointed(mesh, *how))  # noqa: B023
        for name in MASKS:
            yield ("mask", name), caught(lambda: masked(mesh, name))  # noqa: B023
    for at, name in enumerate(CASES):
        layout = LAYOUTS[(at + mesh.size() // 4) % 2]
        yield name, caught(lambda: compare(mesh, *(name, layout)))  # noqa: B023
