"""Graph layers over edges: PyG's layers and relgraph's on one random graph with types on its edges."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, one_hot
from torch_geometric.nn import GATv2Conv, RGATConv, TransformerConv
from torch_geometric.utils import softmax

import relgraph as rg
from docs.benchmarks.sweeps import Edges
from docs.benchmarks.ways import Made, Side, Way, Wrong, distance_from, with_gradients
from relgraph.impl import IMPLEMENTATIONS
from relgraph.impl.eager.sparse import run_numbers

SMALL_EDGES, SAMPLED_NODES = 400, 64
ADDITIVE = "GATv2Conv"


class Inputs:
    """A graph, and a TransformerConv and a GATv2Conv that share their weights with all layers that compute the same."""

    def __init__(self, setting: Edges) -> None:
        self.setting = setting
        self.device, self.dtype = torch.device(setting.device), getattr(torch, setting.dtype)
        generator = torch.Generator().manual_seed(1)
        s = setting
        self.index = torch.randint(s.nodes, (2, s.edges), generator=generator).to(self.device)
        self.types = torch.randint(s.types, (s.edges,), generator=generator).to(self.device)
        self._x, self._grad = (torch.randn(s.nodes, s.width, generator=generator) for _ in range(2))

    @cached_property
    def x(self) -> Tensor:
        """Nodes ``[N, H·C]``, which require gradients."""
        return self._x.to(self.device, self.dtype).requires_grad_()

    @cached_property
    def grad(self) -> Tensor:
        """The gradient of the output."""
        return self._grad.to(self.device, self.dtype)

    @cached_property
    def conv(self) -> TransformerConv:
        """The layer whose weights the others copy."""
        s = self.setting
        torch.manual_seed(2)
        conv = TransformerConv(s.width, s.size, s.heads, edge_dim=s.types)
        return conv.to(self.device, self.dtype)

    @cached_property
    def additive(self) -> GATv2Conv:
        """The layer with additive scores whose weights the others copy."""
        s = self.setting
        torch.manual_seed(2)
        conv = GATv2Conv(s.width, s.size, s.heads, edge_dim=s.types, add_self_loops=False)
        return conv.to(self.device, self.dtype)

    def made(self, layer: nn.Module, call: Callable[[], Tensor], note: str = "") -> Made:
        """A call of a layer with trainable parameters."""
        return Made(call, {"x": self.x, **dict(layer.named_parameters())}, note=note)


def theirs(inputs: Inputs) -> Made:
    """PyG's TransformerConv with one-hot types as edge features."""
    conv = inputs.conv
    hot = one_hot(inputs.types, inputs.setting.types).to(inputs.dtype)
    return inputs.made(conv, lambda: conv(inputs.x, inputs.index, hot))


def ours(impl: str | None, *, sort: bool = True) -> Callable[[Inputs], Made]:
    """RelationConv with the same weights; every call sorts the edges, as the first layer does with each new batch.

    With ``sort=False`` the edges are already sorted, as in a second layer or step.
    """

    def make(inputs: Inputs) -> Made:
        options = {} if impl is None else {"impl": impl}
        conv = rg.pyg.from_transformer_conv(inputs.conv, edge_types=True, **options).to(inputs.device, inputs.dtype)
        if not sort:
            s = inputs.setting
            labels = rg.EdgeLabels(inputs.index, inputs.types, s.types, q_len=s.nodes)
            return inputs.made(conv, lambda: conv(inputs.x, labels), "edges sorted once, as further layers find them")
        note = "sorting of edges included"
        return inputs.made(conv, lambda: conv(inputs.x, inputs.index.clone(), inputs.types), note)

    return make


def theirs_additive(inputs: Inputs) -> Made:
    """PyG's GATv2Conv with one-hot types as edge features."""
    conv = inputs.additive
    hot = one_hot(inputs.types, inputs.setting.types).to(inputs.dtype)
    return inputs.made(conv, lambda: conv(inputs.x, inputs.index, hot), "additive scores")


def ours_additive(inputs: Inputs) -> Made:
    """RelationConv with the weights of that GATv2Conv; every call sorts the edges."""
    conv = rg.pyg.from_gatv2_conv(inputs.additive, edge_types=True)
    note = "additive scores; sorting of edges included"
    return inputs.made(conv, lambda: conv(inputs.x, inputs.index.clone(), inputs.types), note)


def relational(inputs: Inputs) -> Made:
    """PyG's RGATConv: a different function, with one matrix per type."""
    s = inputs.setting
    torch.manual_seed(3)
    conv = RGATConv(s.width, s.size, s.types, heads=s.heads).to(inputs.device, inputs.dtype)
    # the call does not use its other parameters
    leaves = {"x": inputs.x, **{name: getattr(conv, name) for name in ("weight", "q", "k", "bias")}}
    note = "another function, a matrix a type: only checked to be finite"
    return Made(lambda: conv(inputs.x, inputs.index, inputs.types), leaves, note=note)


def expected_additive(inputs: Inputs, rows: Tensor) -> dict[str, Tensor]:
    """The same as :func:`expected` for additive scores."""
    s, conv = inputs.setting, copy.deepcopy(inputs.additive).double()
    x = inputs.x.detach().double().requires_grad_()
    inside = torch.isin(inputs.index[1], rows)
    (source, target), types = inputs.index[:, inside], inputs.types[inside]
    assert conv.lin_edge is not None
    query, key = (lin(x).view(-1, s.heads, s.size) for lin in (conv.lin_r, conv.lin_l))
    vectors = conv.lin_edge.weight.T[types].view(-1, s.heads, s.size)
    scores = (leaky_relu(query[target] + key[source] + vectors, 0.2) * conv.att).sum(-1)
    messages = softmax(scores, target, num_nodes=s.nodes)[..., None] * key[source]
    output = (torch.zeros_like(query).index_add(0, target, messages).flatten(1) + conv.bias)[rows]
    return with_gradients(output, {"x": x}, inputs.grad.double()[rows])


def expected(inputs: Inputs, rows: Tensor) -> dict[str, Tensor]:
    """Output of some nodes and its gradients, in float64, edge by edge, from the formula."""
    s, conv = inputs.setting, copy.deepcopy(inputs.conv).double()
    x = inputs.x.detach().double().requires_grad_()
    inside = torch.isin(inputs.index[1], rows)
    (source, target), types = inputs.index[:, inside], inputs.types[inside]
    assert conv.lin_edge is not None
    query, key, value = (lin(x).view(-1, s.heads, s.size) for lin in (conv.lin_query, conv.lin_key, conv.lin_value))
    vectors = conv.lin_edge.weight.T[types].view(-1, s.heads, s.size)
    scores = (query[target] * (key[source] + vectors)).sum(-1) / s.size**0.5
    weights = softmax(scores, target, num_nodes=s.nodes)
    messages = weights[..., None] * (value[source] + vectors)
    output = (torch.zeros_like(query).index_add(0, target, messages).flatten(1) + conv.lin_skip(x))[rows]
    leaves = {"x": x, "lin_key.weight": conv.lin_key.weight, "lin_value.weight": conv.lin_value.weight}
    return with_gradients(output, leaves, inputs.grad.double()[rows])


def check(way: Way[Edges], made: Made, inputs: Inputs) -> float:
    """Compare outputs of some nodes with the formula; on a small graph all nodes, and gradients."""
    nodes = inputs.setting.nodes
    whole = inputs.setting.edges <= SMALL_EDGES
    rows = torch.arange(nodes) if whole else torch.linspace(0, nodes - 1, SAMPLED_NODES).long()
    rows = rows.to(inputs.device)
    got = with_gradients(made.call(), made.leaves, inputs.grad)
    if way.meaning is None:
        if not all(values.isfinite().all() for values in got.values()):
            raise Wrong(f"{way.name}: output and gradients must be finite")
        return math.nan
    wanted = (expected_additive if way.meaning == ADDITIVE else expected)(inputs, rows)
    if not whole:
        wanted = {"output": wanted["output"]}
    got["output"] = got["output"][rows]
    return distance_from({name: got[name] for name in wanted}, wanted, inputs.dtype, way.name)


def memory(of_edges: int, of_nodes: int = 20) -> Callable[[Edges], int]:
    """Bytes for these counts of numbers per edge, head and channel, and per node, head and channel."""
    return lambda s: 4 * s.width * (of_edges * s.edges + of_nodes * s.nodes)


def ours_memory(s: Edges) -> int:
    """Bytes for some numbers per edge and head, and for nodes."""
    return 4 * (16 * s.edges * s.heads + 40 * s.nodes * s.width)


def additive_memory(s: Edges) -> int:
    """Bytes of the same, and of a few runs of edges, heads and channels."""
    most = run_numbers(torch.device(s.device), torch.float32)
    return ours_memory(s) + 4 * 6 * min(most, s.edges * s.width)


def ways(setting: Edges) -> list[Way[Edges]]:
    """PyG's layer first: it is the floor for ours."""
    same = "TransformerConv"
    found: list[Way[Edges]] = [
        Way("TransformerConv, one-hot types", theirs, memory(8), same),
        Way("relgraph RelationConv", ours(None), ours_memory, same),
        Way("relgraph RelationConv, sorted before", ours(None, sort=False), ours_memory, same),
    ]
    if setting.device.startswith("cuda") and "triton" in IMPLEMENTATIONS:
        found += [
            Way("relgraph RelationConv, triton", ours("triton"), ours_memory, same),
            Way("relgraph RelationConv, triton, sorted before", ours("triton", sort=False), ours_memory, same),
        ]
    found += [
        Way("GATv2Conv, one-hot types", theirs_additive, memory(8), ADDITIVE),
        Way("relgraph RelationConv, additive", ours_additive, additive_memory, ADDITIVE),
    ]
    # one matrix [H·C, H·C] per edge, and as much again for its gradient
    found.append(Way("RGATConv", relational, lambda s: 3 * 4 * s.edges * s.width**2 + memory(12)(s)))
    return found


SIDE: Side[Edges] = Side(ways, Inputs, lambda s: replace(s, edges=SMALL_EDGES), check)
