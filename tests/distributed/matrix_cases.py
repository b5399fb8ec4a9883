"""What the matrix of ``test_matrix`` trains: labels of every kind for any share of a batch, and a small network."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import nn

import relgraph as rg
from tests.distributed.worlds import BY_PLACE
from tests.layers import attention_layer

WIDTH, HEADS, KV_HEADS, LENGTH, SAMPLES, R = 32, 8, 4, 16, 4, 5
LABELER = rg.ClippedDistance(2)
GRAPHS = (3, 0, 4, 2, 1, 3, 0, 3)
"""Sizes of the graphs of a packed batch, ``LENGTH`` nodes in all; some are empty."""

BATCHED = ("distance", "dense", "edges", "edges over an id", "edges over labels", "sum")
PACKED = ("distance", "block", "edges", "edges over an id", "edges over labels", "sum")


class Case(NamedTuple):
    """One cell of the matrix for every mode.

    Attributes:
        kind: of labels.
        packed: whether a batch is graphs one after the other.
        causal: whether a row sees no later key.
        grouped: whether several heads share one head of keys.
        dropout: the probability.
    """

    kind: str
    packed: bool
    causal: bool
    grouped: bool
    dropout: float

    def __str__(self) -> str:
        words = {"packed": self.packed, "causal": self.causal, "grouped": self.grouped, "dropout": self.dropout > 0}
        return ", ".join([self.kind, *(word for word, wanted in words.items() if wanted)])


def cases(turn):
    """Every kind of labels once, packed and not; the other options differ from kind to kind and from turn to turn."""
    kinds = [(kind, packed) for packed in (False, True) for kind in (PACKED if packed else BATCHED)]
    options = list(itertools.product((False, True), (False, True), (0.0, 0.3)))
    return [Case(*kind, *options[(5 * at + 3 * turn) % 8]) for at, kind in enumerate(kinds)]


def random_of(seed):
    return torch.Generator().manual_seed(100 + seed)


def edges_of(seed, length):
    """Different pairs and their ids."""
    generator = random_of(seed)
    pairs = torch.unique(torch.randint(max(length, 1), (2, 3 * length), generator=generator), dim=1)
    return pairs, torch.randint(R, (pairs.shape[1],), generator=generator)


def block_of(seed, length):
    return torch.randint(-1, R, (length * length,), generator=random_of(seed))


def batched_labels(kind, samples):
    """Labels of these samples of the batch; all but distances have labels of their own for each."""
    if kind == "distance":
        return LABELER(LENGTH)
    if kind == "dense":
        return rg.DenseLabels(torch.stack([block_of(s, LENGTH).view(LENGTH, LENGTH) for s in samples]), R)
    if kind == "sum":
        return rg.SumLabels(LABELER(LENGTH), batched_labels("edges over an id", samples))
    pairs, ids = zip(*(edges_of(s, LENGTH) for s in samples), strict=True)
    batch = torch.arange(len(ids)).repeat_interleave(torch.tensor([len(x) for x in ids]))
    default = {"edges": None, "edges over an id": 1, "edges over labels": LABELER(LENGTH)}[kind]
    options = {"q_len": LENGTH, "default": default, "batch": batch, "batch_size": len(ids)}
    return rg.EdgeLabels(torch.cat(pairs, 1), torch.cat(ids), R, **options)


def packed_labels(kind, graphs):
    """Labels of these graphs, packed."""
    sizes = torch.tensor([GRAPHS[g] for g in graphs])
    ptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    length = int(ptr[-1])
    if kind == "distance":
        return LABELER(length, ptr=ptr)
    if kind == "block":
        return rg.BlockLabels(torch.cat([block_of(g, GRAPHS[g]) for g in graphs]), R, ptr)
    if kind == "sum":
        return rg.SumLabels(LABELER(length, ptr=ptr), packed_labels("edges over an id", graphs))
    pairs, ids = zip(*(edges_of(g, GRAPHS[g]) for g in graphs), strict=True)
    shifted = [x + start for x, start in zip(pairs, ptr.tolist(), strict=False)]
    default = {"edges": None, "edges over an id": 1, "edges over labels": LABELER(length, ptr=ptr)}[kind]
    return rg.EdgeLabels(torch.cat(shifted, 1), torch.cat(ids), R, q_len=length, default=default, ptr=ptr)


class Network(nn.Module):
    """Attention between two linear layers."""

    def __init__(self, case):
        super().__init__()
        torch.manual_seed(1)
        # both draw by place in every call, so a seed gives the same mask however the call is split
        impl = ("chunked" if case.causal else BY_PLACE) if case.dropout else None
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attention = attention_layer(
            WIDTH, HEADS, case.dropout, num_labels=(R, R) if case.kind == "sum" else R, per_head=("value",),
            tables=("key", "value", "bias"), num_kv_heads=KV_HEADS if case.grouped else None, impl=impl,
        )  # fmt: skip
        for parameter in self.parameters():  # such as biases and tables that begin at zero
            nn.init.normal_(parameter, std=0.2)
        self.causal = case.causal
        self.double()

    def forward(self, x, labels):
        x = self.first(x)
        return self.last(x + self.attention(x, labels=labels, is_causal=self.causal))


class Share:
    """A part of the batch: some samples, or some graphs; by default all."""

    def __init__(self, case, rank=0, size=1):
        count = len(GRAPHS) if case.packed else SAMPLES
        ids = range(rank * count // size, (rank + 1) * count // size)
        self.labels = (packed_labels if case.packed else batched_labels)(case.kind, ids)
        self.axis = 0 if case.packed else 1
        """The axis of rows."""
        start = sum(GRAPHS[: ids.start]) if case.packed else ids.start
        stop = sum(GRAPHS[: ids.stop]) if case.packed else ids.stop
        shape = [LENGTH, WIDTH] if case.packed else [SAMPLES, LENGTH, WIDTH]
        x, y = torch.randn(2, *shape, generator=random_of(50), dtype=torch.float64)
        self.x, self.y = x[start:stop], y[start:stop]


def loss_of(z, y):
    """A part of the mean over the whole batch."""
    total = LENGTH * WIDTH if z.dim() == 2 else SAMPLES * LENGTH * WIDTH
    return (z - y).square().sum() / total + z.sin().sum() / total
