"""Attention over edges with vectors on them, as a function and as PyG's layer, held to the oracle.

To the oracle every edge carries its number as a second label: the mass of a number is the weight of its edge.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor

import relgraph as rg
from tests.fuzz.cases import KINDS, Case
from tests.fuzz.compare import FuzzError
from tests.fuzz.frame import Frame, draw_frame
from tests.fuzz.labels import Edges, WithVectors, draw_edges
from tests.fuzz.oracle import Truth, solve
from tests.fuzz.scores import draw_query_biases, draw_scores, given, layer_options, layer_parameters, scatter

F64 = torch.float64
INPUTS = ("query", "key", "value")

NEAR = 1e-9
"""How far off float64 may be, for each unit of the largest number."""


def near(what: str, found: Tensor, wanted: Tensor) -> None:
    """That a tensor is what it must be, but for rounding.

    Raises:
        FuzzError: it is not.
    """
    if found.shape != wanted.shape:
        raise FuzzError(f"{what} has shape {list(found.shape)}, must be {list(wanted.shape)}")
    off = (found.detach() - wanted).abs()
    if bool((~(off <= NEAR * (1 + wanted.abs().max()))).any()) if off.numel() else False:
        raise FuzzError(f"{what} is off by {off.max():.3g} where the largest number is {wanted.abs().max():.3g}")


def _draw_alone(rng: Random, *, packed: bool) -> Edges:
    """Edges alone, of one graph or of several, parallel ones among them."""
    frame = draw_frame(rng)
    frame = Frame(frame.packed and packed, 1, frame.q_sizes, frame.k_sizes, (0,) * len(frame.q_sizes))
    if not frame.packed:
        frame = replace(frame, q_sizes=(frame.q_len,), k_sizes=(frame.k_len,), offsets=(0,))
    edges = draw_edges(rng, frame, rng.choice([1, 2, 5]), depth=0, parallel=True, alone=1.0)
    return replace(edges, by_row=False, edges=tuple((None, *edge[1:]) for edge in edges.edges))


def _edge_weights(truth: Truth) -> Tensor:
    """The weight of every edge, ``[E, H]``: of its number, whoever the query."""
    return truth.values["mass", 1][0].sum(1).T


def check_edge_attention(seed: int) -> None:
    """``rg.edge_attention``: output, weights and all gradients.

    Raises:
        FuzzError: something is not what the oracle gives.
    """
    rng, generator = Random(f"edges {seed}"), torch.Generator().manual_seed(seed)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=F64)

    edges = _draw_alone(rng, packed=True)
    heads, kv_heads = rng.choice([(1, 1), (2, 2), (4, 2), (3, 1)])
    size, value_size, width = (rng.choice([1, 2, 3, 5]) for _ in range(3))
    none = Random(f"none of edges {seed}").choice([None] * 12 + ["size", "value size", "edges"])
    size, value_size = size * (none != "size"), value_size * (none != "value size")
    edges = replace(edges, edges=()) if none == "edges" else edges
    frame = edges.frame
    case = Case(seed, frame, WithVectors(edges), heads, kv_heads, size, value_size)
    inputs = ((frame.q_len, heads, size), (frame.k_len, kv_heads, size), (frame.k_len, kv_heads, value_size))
    case.leaves = {name: leaf(*shape).transpose(0, 1)[None] for name, shape in zip(INPUTS, inputs, strict=True)}
    widths = {"key": (size,), "value": (value_size,), "query": (size,), "bias": ()}
    for kind in KINDS:
        if rng.random() < 0.6:
            case.leaves[kind, 0] = leaf(*((heads,) if rng.random() < 0.5 else ()), edges.num_labels, *widths[kind])
    attr = leaf(len(edges.edges), width)
    for kind in ("key", "value"):
        if rng.random() < 0.5:
            case.leaves["attr"] = attr
            own = (heads,) if rng.random() < 0.5 else ()
            case.leaves[f"edge_{kind}"] = leaf(*own, *widths[kind], width)
    case.scale = rng.choice([None, 0.7])
    case.incoming = {"z": torch.randn((1, heads, frame.q_len, value_size), generator=generator, dtype=F64)}
    draw_scores(case, "scores of edges")
    draw_query_biases(case)
    truth = solve(case, F64)
    leaves = {name: x.clone().requires_grad_() for name, x in case.leaves.items()}

    def by_node(x: Tensor) -> Tensor:
        return x[0].transpose(0, 1)

    z, weights = rg.edge_attention(
        *(by_node(leaves[name]) for name in INPUTS), edges.build(), *(leaves.get((kind, 0)) for kind in KINDS),
        scale=case.scale, enable_gqa=heads != kv_heads, need_weights=True, **given(case, leaves, by_node),
    )  # fmt: skip
    what = f"seed {seed}: edge_attention over {edges} with {case.score} and {[*leaves][3:]}"
    near(f"{what}: z", z, by_node(truth.values["z"]))
    near(f"{what}: weights", weights, _edge_weights(truth))
    grads = torch.autograd.grad(z, list(leaves.values()), by_node(case.incoming["z"]), allow_unused=True)
    for (name, x), grad in zip(leaves.items(), grads, strict=True):
        wanted = truth.values["grad", name]
        near(f"{what}: gradient of {name}", torch.zeros_like(x) if grad is None else grad, wanted)


def check_conv(seed: int) -> None:
    """``rg.pyg.RelationConv``, fused and by its messages: nodes, weights, and the gradient of the nodes that go in.

    Raises:
        FuzzError: something is not what the oracle gives.
    """
    rng = Random(f"conv {seed}")
    torch.manual_seed(seed)
    edges = _draw_alone(rng, packed=False)
    frame, heads, size = edges.frame, rng.choice([1, 2, 3]), rng.choice([1, 2, 4])
    bipartite = frame.q_len != frame.k_len or rng.random() < 0.3
    widths = (rng.choice([1, 3]), rng.choice([2, 3])) if bipartite else (3, 3)
    types, vectors = rng.random() < 0.8, rng.choice([None, None, 1, 3])
    options: dict[str, Any] = {"concat": rng.random() < 0.5, "bias": rng.random() < 0.5, "edge_dim": vectors}
    options |= {"root_weight": rng.random() < 0.5}
    kinds = [kind for kind in KINDS if rng.random() < 0.5] or ["key"]
    if types:
        tables = rg.RelationTables(edges.num_labels, size, heads, kinds=kinds, per_head=rng.random() < 0.5)
        options |= {"tables": tables}
    case = Case(seed, frame, WithVectors(edges), heads, heads, size, size)
    more = layer_options(
        case, Random(f"scores of conv {seed}"), count=edges.num_labels * types, kinds=kinds if types else []
    )
    conv = rg.pyg.RelationConv(widths if bipartite else 3, size, heads, **options, **more).double()
    scatter(conv, torch.Generator().manual_seed(seed))
    x = tuple(torch.randn(n, w, dtype=F64) for n, w in zip((frame.k_len, frame.q_len), widths, strict=True))
    x = tuple(x) if bipartite else (x[0], x[0])
    attr = None if vectors is None else torch.randn(len(edges.edges), vectors, dtype=F64)
    _fill(case, conv, x, attr, types=types)
    out_grad = torch.randn(frame.q_len, heads * size if conv.concat else size, dtype=F64)
    shared = out_grad.view(-1, heads, size) if conv.concat else out_grad[:, None].expand(-1, heads, -1) / heads
    case.incoming = {"z": shared.transpose(0, 1)[None]}
    truth = solve(case, F64)
    z = truth.values["z"][0].transpose(0, 1)
    z = z.flatten(1) if conv.concat else z.mean(1)
    z = z if conv.lin_skip is None else z + conv.lin_skip(x[1]).detach()
    index = torch.tensor([edge[2:0:-1] for edge in edges.edges], dtype=torch.int64).reshape(-1, 2).T
    relations = torch.tensor([edge[3] for edge in edges.edges], dtype=torch.int64) if types else None
    for fused in (True, False):
        conv._can_fuse = lambda fused=fused: fused
        leaves = tuple(part.clone().requires_grad_() for part in x) if bipartite else (x[0].clone().requires_grad_(),)
        given = leaves if bipartite else leaves[0]
        got, (_, alpha) = conv(given, index, relations, attr, return_attention_weights=True)
        what = f"seed {seed}: {conv} with {options | more}, fused {fused}, over {edges}"
        near(f"{what}: nodes", got, z)
        near(f"{what}: weights", alpha, _edge_weights(truth))
        wanted = _node_grads(conv, truth, out_grad)
        wanted = dict(enumerate(wanted if bipartite else (wanted[0] + wanted[1],)))
        parameters = layer_parameters(conv)
        wanted |= {name: truth.values["grad", name] for name in parameters}
        learned = {**dict(enumerate(leaves)), **parameters}
        grads = torch.autograd.grad(got, list(learned.values()), out_grad, allow_unused=True)
        for (name, leaf), grad in zip(learned.items(), grads, strict=True):
            near(f"{what}: gradient of {name}", torch.zeros_like(leaf) if grad is None else grad, wanted[name])


def _fill(case: Case, conv: Any, x: tuple[Tensor, ...], attr: Tensor | None, *, types: bool) -> None:
    """What the layer asks of the primitive."""
    heads, size = conv.heads, conv.out_channels

    def by_heads(lin: Any, nodes: Tensor) -> Tensor:
        return (nodes @ lin.weight.T + (0 if lin.bias is None else lin.bias)).view(-1, heads, size).transpose(0, 1)

    with torch.no_grad():
        sides = ((conv.lin_query, x[1]), (conv.lin_key, x[0]), (conv.lin_value, x[0]))
        case.leaves = {name: by_heads(lin, nodes)[None] for name, (lin, nodes) in zip(INPUTS, sides, strict=True)}
        if types:
            tables = {name.removesuffix("_table"): table.detach() for name, table in conv.tables().items()}
            case.leaves |= {(kind, 0): table for kind, table in tables.items()}
        if attr is not None:
            case.leaves["attr"] = attr
            for name, lin in (("edge_key", conv.lin_edge), ("edge_value", conv.lin_edge_value)):
                case.leaves[name] = lin.weight.unflatten(0, (heads, size))
        case.leaves |= {name: weight.detach() for name, weight in layer_parameters(conv).items()}


def _node_grads(conv: Any, truth: Truth, out_grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of sources and targets."""
    by_name = {name: truth.values["grad", name][0].transpose(0, 1).flatten(1) for name in INPUTS}
    with torch.no_grad():
        sources = by_name["key"] @ conv.lin_key.weight + by_name["value"] @ conv.lin_value.weight
        targets = by_name["query"] @ conv.lin_query.weight
        if conv.lin_skip is not None:
            targets = targets + out_grad @ conv.lin_skip.weight
    return sources, targets
