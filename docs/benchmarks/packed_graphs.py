"""Many small graphs: packed attention between all nodes of each, against padding them to the largest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import relgraph as rg
from docs.benchmarks import peers
from docs.benchmarks.sweeps import Packed
from docs.benchmarks.ways import Made, Side, Way, distance_from, with_gradients
from relgraph.impl import IMPLEMENTATIONS
from relgraph.impl.native import build

NO_LABELS, BIAS, BOTH = "none", "bias", "both"
SMALL_GRAPHS, SAMPLED_GRAPHS = 3, 4


def random_graphs(sizes: Tensor) -> rg.Graph:
    """Connected graphs: a chain, plus the same number of other edges."""
    generator = torch.Generator().manual_seed(2)
    graphs = []
    for n in sizes.tolist():
        chain = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
        graphs.append(rg.Graph(torch.cat([chain, torch.randint(n, (2, n), generator=generator)], 1), n))
    return rg.Graph.batch(graphs)


class Inputs:
    """Graphs and their labels, with the same numbers packed and padded."""

    def __init__(self, setting: Packed) -> None:
        s = self.setting = setting
        self.device, self.dtype = torch.device(s.device), getattr(torch, s.dtype)
        generator = torch.Generator().manual_seed(1)
        self.sizes = torch.randint(5, s.most + 1, (s.graphs,), generator=generator)
        labels = rg.ShortestPath(10)(random_graphs(self.sizes))
        assert isinstance(labels, rg.BlockLabels)
        self.labels = labels.to(self.device)
        self.longest = int(self.sizes.max())
        # checks read the borders on the CPU; moving the labels keeps their numbers
        self.borders = [0, *self.sizes.cumsum(0).tolist()]
        total = self.borders[-1]
        drawn = [torch.randn(total, s.heads, s.size, generator=generator) for _ in range(4)]
        *self._qkv, self.grad = (x.to(self.device, self.dtype) for x in drawn)
        r = labels.num_labels
        key, value = (torch.randn(r, s.size, generator=generator) / math.sqrt(s.size) for _ in range(2))
        bias = torch.randn(s.heads, r, generator=generator)
        learn = {"key_table": key, "value_table": value, "bias_table": bias}
        self.tables = {name: x.to(self.device, self.dtype).requires_grad_() for name, x in learn.items()}

    @cached_property
    def inside(self) -> Tensor:
        """Which rows of the padded batch are nodes, ``[G, N]``."""
        return (torch.arange(self.longest) < self.sizes[:, None]).to(self.device)

    @cached_property
    def packed(self) -> dict[str, Tensor]:
        """Query, key and value ``[T, H, D]``, which require gradients."""
        names = ("query", "key", "value")
        return {name: x.clone().requires_grad_() for name, x in zip(names, self._qkv, strict=True)}

    @cached_property
    def padded(self) -> dict[str, Tensor]:
        """Query, key and value ``[G, H, N, D]``, which require gradients; zero for padding."""
        out = {}
        for name, x in self.packed.items():
            wide = x.new_zeros(*self.inside.shape, *x.shape[1:])
            wide[self.inside] = x.detach()
            out[name] = wide.transpose(1, 2).contiguous().requires_grad_()
        return out

    @cached_property
    def padded_ids(self) -> Tensor:
        """The label of every pair of the padded batch, ``[G, N, N]``; 0 for padding."""
        return rg.labels.padded(self.labels, self.longest).to_dense()[0].clamp_min(0)

    def ids_of(self, g: int) -> Tensor:
        """The labels within one graph, ``[n, n]``."""
        begin = int((self.sizes[:g] ** 2).sum())
        n = int(self.sizes[g])
        return self.labels.ids[begin : begin + n * n].view(n, n).long()

    def chosen(self, tables: str) -> dict[str, Any]:
        """The tables of a meaning."""
        names = {NO_LABELS: (), BIAS: ("bias_table",), BOTH: ("key_table", "value_table")}[tables]
        return {name: self.tables[name] for name in names}


def packed(tables: str, impl: str = "chunked") -> Callable[[Inputs], Made]:
    """Ours: nodes packed end to end, without padding."""

    def make(inputs: Inputs) -> Made:
        chosen = inputs.chosen(tables)
        query, key, value = inputs.packed.values()
        return Made(
            lambda: rg.relation_attention(query, key, value, inputs.labels, **chosen, impl=impl),
            {**inputs.packed, **chosen},
        )

    return make


def padded_bias(inputs: Inputs) -> Made:
    """A graph Transformer on a padded batch: fused attention with learned scalars per label and head, as Graphormer."""
    ids, blocked = inputs.padded_ids, ~inputs.inside[:, None, None]
    query, key, value = inputs.padded.values()
    chosen = inputs.chosen(BIAS)

    def call() -> Tensor:
        bias = chosen["bias_table"][:, ids].transpose(0, 1).masked_fill(blocked, float("-inf"))
        return _nodes(inputs, scaled_dot_product_attention(query, key, value, attn_mask=bias))

    return Made(call, {**inputs.padded, **chosen})


def buckets(inputs: Inputs) -> Made:
    """The same with graphs of similar size together: eight batches, each padded to its own longest graph."""
    chosen, query_key_value = inputs.chosen(BIAS), tuple(inputs.padded.values())
    parts, places = [], []
    begin = torch.tensor(inputs.borders)
    for members in inputs.sizes.argsort().tensor_split(min(8, len(inputs.sizes))):
        most = int(inputs.sizes[members].max())
        inside = inputs.inside[members, :most]
        parts.append((members, most, inputs.padded_ids[members, :most, :most], inside))
        places.append((begin[members][:, None] + torch.arange(most))[inside.cpu()])
    back = torch.cat(places).argsort().to(inputs.device)

    def call() -> Tensor:
        found = []
        for members, most, ids, inside in parts:
            bias = chosen["bias_table"][:, ids].transpose(0, 1).masked_fill(~inside[:, None, None], float("-inf"))
            query, key, value = (x[members, :, :most] for x in query_key_value)
            found.append(scaled_dot_product_attention(query, key, value, attn_mask=bias).transpose(1, 2)[inside])
        return torch.cat(found)[back]

    return Made(call, {**inputs.padded, **chosen}, note="slices of the batch are copied, where a loader would pad less")


def padded_split(inputs: Inputs) -> Made:
    """A graph Transformer on a padded batch with key and value tables: the split term over all padded pairs."""
    ids, blocked = inputs.padded_ids[:, None], ~inputs.inside[:, None, None]
    chosen = inputs.chosen(BOTH)

    leaves = {**inputs.padded, **chosen}
    return Made(lambda: _nodes(inputs, peers.split(*leaves.values(), ids, blocked)), leaves)


def padded_plain(inputs: Inputs) -> Made:
    """Fused attention on a padded batch, without labels."""
    seen = inputs.inside[:, None, None]
    query, key, value = inputs.padded.values()
    return Made(lambda: _nodes(inputs, scaled_dot_product_attention(query, key, value, attn_mask=seen)), inputs.padded)


def _nodes(inputs: Inputs, padded: Tensor) -> Tensor:
    """The rows that are nodes, ``[T, H, D]``."""
    return padded.transpose(1, 2)[inputs.inside]


def expected(inputs: Inputs, tables: str, graphs: list[int]) -> list[dict[str, Tensor]]:
    """Output of some graphs and gradients of their inputs, each graph computed separately in float64."""
    exact = {name: x.detach().double().requires_grad_() for name, x in inputs.chosen(tables).items()}
    out = []
    for g in graphs:
        rows = slice(inputs.borders[g], inputs.borders[g + 1])
        mine = {name: x[rows].detach().double().requires_grad_() for name, x in inputs.packed.items()}
        q, k, v = (x.transpose(0, 1) for x in mine.values())
        ids = inputs.ids_of(g)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if "key_table" in exact:
            scores = scores + torch.einsum("hid,ijd->hij", q, exact["key_table"][ids]) / math.sqrt(q.shape[-1])
        if "bias_table" in exact:
            scores = scores + exact["bias_table"][:, ids]
        weights = scores.softmax(-1)
        output = weights @ v
        if "value_table" in exact:
            output = output + torch.einsum("hij,ijd->hid", weights, exact["value_table"][ids])
        out.append(with_gradients(output.transpose(0, 1), mine | exact, inputs.grad[rows].double()))
    return out


def check(way: Way[Packed], made: Made, inputs: Inputs) -> float:
    """Compare some graphs with separate computations; in a small batch all graphs, and tables too."""
    count = len(inputs.sizes)
    graphs = (
        list(range(count)) if count <= SMALL_GRAPHS else torch.linspace(0, count - 1, SAMPLED_GRAPHS).long().tolist()
    )
    whole, worst = with_gradients(made.call(), made.leaves, inputs.grad), 0.0
    alone = expected(inputs, way.meaning, graphs)
    for g, wanted in zip(graphs, alone, strict=True):
        rows = slice(inputs.borders[g], inputs.borders[g + 1])
        got = {name: _rows_of(inputs, whole[name], g, rows) for name in ("output", *inputs.packed)}
        worst = max(worst, distance_from(got, {name: wanted[name] for name in got}, inputs.dtype, way.name))
    if len(graphs) == count:
        sums = {name: sum((one[name] for one in alone), torch.zeros(())) for name in inputs.chosen(way.meaning)}
        worst = max(worst, distance_from(whole, sums, inputs.dtype, way.name))
    return worst


def _rows_of(inputs: Inputs, x: Tensor, g: int, rows: slice) -> Tensor:
    """One graph's part of a packed tensor, or of a padded one."""
    return x[rows] if x.dim() == 3 else x[g].transpose(0, 1)[: int(inputs.sizes[g])]


def pairs(count: int) -> Callable[[Packed], int]:
    """Bytes for ``count`` numbers per padded pair and head."""
    return lambda s: 4 * count * s.graphs * s.heads * s.most**2


def nodes(s: Packed) -> int:
    """Bytes for some numbers per node, head and channel."""
    return 4 * 40 * s.graphs * s.most * s.heads * s.size


def ways(setting: Packed) -> list[Way[Packed]]:
    """All ways; padded attention without labels is first."""
    found: list[Way[Packed]] = [Way("padded SDPA, no labels", padded_plain, pairs(4), NO_LABELS)]
    kernel = setting.device.startswith("cuda") and "triton" in IMPLEMENTATIONS
    compiled = setting.device == "cpu" and build.missing() is None
    for impl in (*(["native"] if compiled else []), "chunked", *(["triton"] if kernel else [])):
        found += [
            Way(f"relgraph {impl}, packed, key and value tables", packed(BOTH, impl), nodes, BOTH),
            Way(f"relgraph {impl}, packed, bias", packed(BIAS, impl), nodes, BIAS),
        ]
    found += [
        Way("padded graph Transformer, split term", padded_split, pairs(10), BOTH),
        Way("padded graph Transformer, SDPA with bias", padded_bias, pairs(6), BIAS),
        Way("the same in eight batches of similar size", buckets, pairs(6), BIAS),
    ]
    return found


SIDE: Side[Packed] = Side(ways, Inputs, lambda s: replace(s, graphs=SMALL_GRAPHS, most=min(s.most, 24)), check)
