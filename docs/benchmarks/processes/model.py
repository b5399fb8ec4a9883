"""Bytes that one process sends and memory that it takes, in each mode.

Everything is per process and step, and counts what the code does; where a formula is an estimate, it says so. P is the
number of processes that a formula is about, n = N/P the rows of each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

SUM = 4
"""Bytes of a number in sums, log-sum-exps and what labels add: float32, also where inputs are of half that size."""

METHODS = ("allgather", "ring", "ulysses")
COPIES = 1.5
"""How often compiled kernels for a CPU copy keys and values into panels in backward: both once, keys once more."""

EDGE = 106
"""Bytes that a process holds at its peak for each edge, as ``python -m docs.benchmarks.processes memory`` measures."""


@dataclass(frozen=True)
class Sequences:
    """A layer over sequences of one length, with tables for keys and values that all heads share.

    Args:
        n: rows of a sequence.
        batch: sequences in a step.
        heads: of queries.
        kv_heads: of keys and values.
        size: numbers of each head.
        labels: R, rows of each table.
        itemsize: bytes of a number in what layers hold and send.
    """

    n: int
    batch: int = 1
    heads: int = 8
    kv_heads: int = 8
    size: int = 64
    labels: int = 33
    itemsize: int = 4

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.heads * self.size


class Sent(NamedTuple):
    """Bytes that one process sends for one call of attention.

    Attributes:
        forward: in forward.
        backward: in backward.
        hidden: how many of both travel while something is computed.
    """

    forward: float
    backward: float
    hidden: float = 0.0


def context_bytes(method: str, work: Sequences, processes: int) -> Sent:
    """Bytes of one call with rows over processes, by the method's name."""
    others = processes - 1
    numbers = work.batch * work.n / processes  # rows of a process
    keys = numbers * 2 * work.kv_heads * work.size  # keys and values of a process
    if method == "allgather":
        # its own keys and values go to each other process; in backward the gradient of each other process's
        once = others * keys * work.itemsize
        return Sent(once, once)
    if method == "ring":
        # P - 1 steps to the next process, in backward again; the sums of gradients, float32, go all the way round
        once = others * keys * work.itemsize
        sums = processes * keys * SUM if processes > 1 else 0.0
        return Sent(once, (once + sums), 2 * once)
    # Ulysses: all but 1/P of query, key, value and output change hands; the log-sum-exp does in forward alone
    query = numbers * work.heads * work.size
    moved = (2 * query + keys) * work.itemsize
    share = others / processes
    return Sent(share * (moved + numbers * work.heads * SUM), share * moved)


def halo_bytes(rows: float, width: int, itemsize: int) -> Sent:
    """Bytes of ``with_halo``: a row of features for each node that another process needs, and its gradient back."""
    once = rows * width * itemsize
    return Sent(once, once)


def random_halo(nodes: int, edges: int, processes: int) -> float:
    """Sources that one process needs of others if nodes are distributed at random; a partitioner leaves a share.

    Each of the E/P edges of a process has any of the V nodes as its source, so all of them miss a node with probability
    (1 - 1/V)^(E/P), about exp(-E / PV).
    """
    return nodes * (1 - 1 / processes) * -math.expm1(-edges / processes / nodes)


def setup_bytes(rows: float, processes: int) -> float:
    """Bytes of making a NodePartition: how many rows are wanted of each other process, and their numbers, int64."""
    return 8 * (processes - 1 + rows)


def attention_memory(work: Sequences, method: str | None = None, processes: int = 1, copies: float = 0.0) -> float:
    """Bytes at the peak of one call, forward and backward: inputs, the gradient it is given and those it gives too.

    Args:
        work: all of it.
        method: how rows see those of others; None without a region.
        processes: P.
        copies: how often the implementation copies the keys and values that it is given; :data:`COPIES` on a CPU.
    """
    rows = work.batch * work.n / processes
    one = rows * work.width  # numbers of a query, an output or a gradient of either
    keys = rows * 2 * work.kv_heads * work.size
    # what each label adds to a score, the weight that it receives, the gradient of both; and the log-sum-exp
    labels = rows * work.heads * (3 * (work.labels + 1) + 1) * SUM
    size = work.itemsize
    own = one * (3 * size + SUM) + keys * size + labels  # query, output, their gradients; keys and values
    if method == "allgather":
        # all keys and values; for one of two groups of heads their gradients and copies; the output once more, joined
        return own + one * SUM + processes * keys * (size + 0.5 * size + 0.5 * copies * SUM)
    if method == "ring":
        # keys and values that are here and those that come, two sets of gradients, and one part's output and query
        return own + one * 3 * SUM + keys * (2 * size + 2 * SUM + copies * SUM)
    if method == "ulysses":
        # query, keys and values by rows and by heads; output and its gradient likewise
        return own + keys * size + one * (3 * size) + keys * (size + copies * SUM)
    return own + keys * (size + copies * SUM)
