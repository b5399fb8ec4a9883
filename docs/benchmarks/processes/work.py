"""What is to be computed: layers of attention over sequences, or over the edges of a graph."""

from __future__ import annotations

import math
from dataclasses import dataclass

SUM = 4
"""Bytes of a number in sums, log-sum-exps and what labels add: float32, also where inputs are of half that size."""


@dataclass(frozen=True)
class Sequences:
    """Layers over sequences of one length, with tables for keys and values that all heads share.

    Args:
        n: rows of a sequence.
        batch: sequences in a step.
        heads: of queries.
        kv_heads: of keys and values.
        size: numbers of each head.
        labels: R, rows of each table.
        layers: how many there are.
        inner: width inside the feed-forward part; 0 for attention alone, without projections.
        itemsize: bytes of a number in what layers hold and send.
        is_causal: whether rows see only keys up to their own.
        training: whether backward and a step of the optimizer follow.
    """

    n: int
    batch: int = 1
    heads: int = 8
    kv_heads: int = 8
    size: int = 64
    labels: int = 33
    layers: int = 1
    inner: int = 0
    itemsize: int = 4
    is_causal: bool = False
    training: bool = True

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.heads * self.size

    @property
    def parameters(self) -> int:
        """Numbers that are learned: tables, and with a feed-forward part the projections as well."""
        tables = 2 * self.labels * self.size
        if not self.inner:
            return self.layers * tables
        projections = self.width * (2 * self.width + 2 * self.kv_heads * self.size)
        return self.layers * (tables + projections + 2 * self.width * self.inner)


@dataclass(frozen=True)
class Graph:
    """Layers over the edges of one graph: a node attends to the sources of its edges, whatever other pairs there are.

    Args:
        nodes: of the whole graph.
        edges: of the whole graph.
        width: numbers of a node's features, which are those of all heads together.
        heads: of queries, keys and values.
        labels: R, relations.
        layers: how many there are.
        halo: sources that a process needs of others, as a share of those that it would need if nodes were dealt out at
            random: 1 without a partitioner.
        itemsize: bytes of a number.
        training: whether backward follows.
    """

    nodes: int
    edges: int
    width: int = 128
    heads: int = 4
    labels: int = 32
    layers: int = 2
    halo: float = 1.0
    itemsize: int = 4
    training: bool = True

    @property
    def parameters(self) -> int:
        """Numbers that are learned: projections of query, key, value and the node itself, and two tables."""
        return self.layers * (4 * self.width**2 + 2 * self.labels * self.width // self.heads)

    def halo_rows(self, processes: int) -> float:
        """Sources that one of several processes needs of others.

        Dealt out at random, each of the E/P edges of a process has any of the V nodes as its source, so a node is
        missed by all of them with probability (1 - 1/V)^(E/P), about exp(-E / PV).
        """
        others = self.nodes * (1 - 1 / processes)
        return self.halo * others * -math.expm1(-self.edges / processes / self.nodes)
