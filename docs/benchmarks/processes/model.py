"""Bytes that one process sends, operations that it computes and memory that it takes, in each mode.

Everything is per process and step, and counts what the code does; where a formula is an estimate, it says so. P is the
number of processes that a formula is about, n = N/P the rows of each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from docs.benchmarks.processes.work import SUM, Graph, Sequences

METHODS = ("allgather", "ring", "ulysses")
ADAM = 16
"""Bytes of a learned number with its gradient and two averages of Adam, float32 each."""

COPIES = 1.5
"""How often compiled kernels for a CPU copy keys and values into panels in backward: both once, keys once more."""

EDGE = 106
"""Bytes that a process holds at its peak for each edge, as ``python -m docs.benchmarks.processes memory`` measures."""


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
        return Sent(once, once * work.training)
    if method == "ring":
        # P - 1 steps to the next process, in backward again; the sums of gradients, float32, go all the way round
        once = others * keys * work.itemsize
        sums = processes * keys * SUM if processes > 1 else 0.0
        return Sent(once, (once + sums) * work.training, once * (1 + work.training))
    # Ulysses: all but 1/P of query, key, value and output change hands; the log-sum-exp does in forward alone
    query = numbers * work.heads * work.size
    moved = (2 * query + keys) * work.itemsize
    share = others / processes
    return Sent(share * (moved + numbers * work.heads * SUM), share * moved * work.training)


def heads_bytes(work: Sequences, processes: int) -> Sent:
    """Bytes of one layer whose heads are over processes: a sum of its output, and one of its input's gradient.

    Gradients of tables that all heads share are summed too. A feed-forward part that is split by columns and rows has
    two more sums, as attention has.
    """
    rows = work.batch * work.n * work.width * work.itemsize * (2 if work.inner else 1)
    tables = 2 * work.labels * work.size * SUM
    return Sent(all_reduce(rows, processes), all_reduce(rows + tables, processes) * work.training)


def all_reduce(size: float, processes: int) -> float:
    """Bytes that each process sends for a sum of ``size`` bytes, by the ring algorithm: sum the parts, then gather."""
    return 2 * (processes - 1) / processes * size


def replicated_bytes(parameters: float, processes: int) -> float:
    """Bytes of DistributedDataParallel: one sum of all gradients, float32."""
    return all_reduce(parameters * SUM, processes)


def sharded_bytes(parameters: float, itemsize: int, processes: int) -> float:
    """Bytes of ``fully_shard``: parameters are gathered in forward and in backward, gradients are summed to shards."""
    return 3 * (processes - 1) / processes * parameters * itemsize


def halo_bytes(rows: float, width: int, itemsize: int, training: bool = True) -> Sent:
    """Bytes of ``with_halo``: a row of features for each node that another process needs, and its gradient back."""
    once = rows * width * itemsize
    return Sent(once, once * training)


def setup_bytes(rows: float, processes: int) -> float:
    """Bytes of making a NodePartition: how many rows are wanted of each other process, and their numbers, int64."""
    return 8 * (processes - 1 + rows)


def attention_flops(work: Sequences, method: str | None = None, processes: int = 1) -> float:
    """Operations of one call for the rows of a process: 2 for each multiplication that is added.

    Forward is two products of all pairs, backward five; the ring computes forward again. Tables take a product with
    R rows for the key and one for the value, in each part of the ring again, and twice that in backward.
    """
    rows = work.batch * work.heads * work.n / processes
    pairs = 2 * work.size * rows * work.n * (0.5 if work.is_causal else 1.0)
    tables = 2 * work.size * rows * work.labels * 2
    if method == "ring":
        tables *= processes
    if not work.training:
        return 2 * pairs + tables
    again = method == "ring"
    return (7 + 2 * again) * pairs + (3 + again) * tables


def linear_flops(work: Sequences, processes: int = 1) -> float:
    """Operations of projections and the feed-forward part; backward has two products for each of forward."""
    learned = work.parameters - work.layers * 2 * work.labels * work.size
    return 2 * work.batch * work.n / processes * learned * (3 if work.training else 1)


class Mode(NamedTuple):
    """How processes share the work: data × heads × rows of them.

    Attributes:
        data: processes with sequences of their own.
        sharded: whether those of ``data`` and ``rows`` shard what is learned (FSDP2), or all hold it (DDP).
        heads: processes that share the heads of a layer (tensor parallelism).
        rows: processes that share the rows of a sequence (context parallelism), or the nodes of a graph.
        method: how rows see those of others.
    """

    data: int = 1
    sharded: bool = False
    heads: int = 1
    rows: int = 1
    method: str | None = None

    @property
    def processes(self) -> int:
        """P."""
        return self.data * self.heads * self.rows

    @property
    def split(self) -> str:
        """The split in words."""
        names = (("data", self.data), ("heads", self.heads), ("rows", self.rows))
        parts = [f"{name} {count}" for name, count in names if count > 1]
        return ", ".join([*parts, *(["FSDP2"] if self.sharded else [])]) or "–"


class Transfer(NamedTuple):
    """What a process sends in a step for one purpose.

    Attributes:
        what: the purpose.
        sent: bytes.
        span: processes from the first to the last of the group; as many as a node has, and they are in one.
        hidden: whether it travels while something is computed.
    """

    what: str
    sent: float
    span: int
    hidden: bool


class Cost(NamedTuple):
    """What one process does in a step.

    Attributes:
        flops: operations.
        moved: bytes read and written where that takes longer than operations: over edges; else 0.
        memory: bytes held at the peak.
        transfers: what is sent.
    """

    flops: float
    moved: float
    memory: float
    transfers: tuple[Transfer, ...]


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


def kept_memory(work: Sequences, method: str | None = None, processes: int = 1, heads: int = 1) -> float:
    """Bytes that a layer keeps from forward for backward; an estimate, as it depends on the layer's own code.

    Args:
        work: the whole, with all of its heads.
        method: how rows see those of others.
        processes: that share the rows.
        heads: processes that share the heads.
    """
    rows, size = work.batch * work.n / processes, work.itemsize
    one = rows * work.width / heads
    keys = rows * 2 * work.kv_heads * work.size / heads * (processes if method == "allgather" else 1)
    # the ring computes what labels add again
    columns = 1 if method == "ring" else 2 * (work.labels + 1) + 1
    found = one * (2 * size + SUM) + keys * size + rows * work.heads / heads * columns * SUM
    if work.inner:
        # inputs of both halves of a layer and of their norms; the feed-forward part before and after its activation
        found += rows * (4 * work.width + 2 * work.inner / heads) * size
    return found


def sequence_cost(work: Sequences, mode: Mode, copies: float = 0.0) -> Cost:
    """The cost of a step over sequences in one mode."""
    batch = work.batch / mode.data
    of_heads = replace(
        work, batch=batch, heads=work.heads // mode.heads, kv_heads=work.kv_heads // mode.heads  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    found: list[Transfer] = []
    if mode.method is not None and mode.rows > 1:
        sent = context_bytes(mode.method, of_heads, mode.rows)
        span, waited = mode.heads * mode.rows, sent.forward + sent.backward - sent.hidden
        found += [
            Transfer("rows", work.layers * waited, span, hidden=False),
            Transfer("rows", work.layers * sent.hidden, span, hidden=True),
        ]
    if mode.heads > 1:
        sent = heads_bytes(replace(work, batch=batch, n=work.n // mode.rows), mode.heads)  # pyright: ignore[reportArgumentType]
        found.append(Transfer("heads", work.layers * (sent.forward + sent.backward), mode.heads, hidden=False))
    learned, sharing = work.parameters / mode.heads, mode.data * mode.rows
    if sharing > 1 and mode.sharded:
        sent = sharded_bytes(learned, work.itemsize, sharing) / (1 if work.training else 3)
        found.append(Transfer("parameters", sent, mode.processes, hidden=True))
    elif sharing > 1 and work.training:
        found.append(Transfer("parameters", replicated_bytes(learned, sharing), mode.processes, hidden=True))
    shards = sharing if mode.sharded else 1
    memory = learned / shards * (ADAM if work.training else work.itemsize)
    if shards > 1:
        memory += 2 * learned / work.layers * work.itemsize  # a layer that computes, and the next one on its way
    if work.training:
        memory += (work.layers - 1) * kept_memory(replace(work, batch=batch), mode.method, mode.rows, mode.heads)  # pyright: ignore[reportArgumentType]
    memory += attention_memory(of_heads, mode.method, mode.rows, copies)
    flops = work.layers * attention_flops(of_heads, mode.method, mode.rows) + linear_flops(work, mode.processes)
    return Cost(flops, 0.0, memory, tuple(found))


def graph_cost(graph: Graph, method: str | None, processes: int) -> Cost:
    """The cost of a step over all edges of a graph, its nodes split over processes; an estimate but for the bytes sent.

    ``"nodes"`` is NodePartition: features of the halo travel. Other methods are those of ``context_parallel``, where
    keys and values of all nodes travel, and each process holds the labels of the whole graph.
    """
    rows, edges, width, size = graph.nodes / processes, graph.edges / processes, graph.width, graph.itemsize
    halo = graph.halo_rows(processes) if method == "nodes" else 0.0
    work = Sequences(
        graph.nodes, heads=graph.heads, kv_heads=graph.heads, size=width // graph.heads, labels=graph.labels,
        itemsize=size, training=graph.training,
    )  # fmt: skip
    sent, spare = Sent(0.0, 0.0), 0.0
    if method == "nodes":
        sent = halo_bytes(halo, width, size, graph.training)
    elif method is not None:
        sent = context_bytes(method, work, processes)
        spare = attention_memory(work, method, processes) - attention_memory(replace(work, n=int(rows)))
    waited = (sent.forward + sent.backward - sent.hidden) * graph.layers
    found = [
        Transfer("nodes", waited, processes, hidden=False),
        Transfer("nodes", sent.hidden * graph.layers, processes, hidden=True),
        Transfer("parameters", replicated_bytes(graph.parameters, processes) * graph.training, processes, hidden=True),
    ]
    again = method == "ring"
    products = 3 if graph.training else 1
    linear = 2 * width**2 * (2 * rows + 2 * (rows + halo)) * products  # query and itself; keys and values
    pairs = 2 * edges * width * (7 + 2 * again if graph.training else 2)
    tables = 2 * 2 * rows * graph.labels * width * products
    # an edge reads a key and a value; backward reads both again and adds to the gradients of both
    moved = edges * 2 * width * size * ((3 if graph.training else 1) + again)
    kept = rows * 3 * width * size + (rows + halo) * 3 * width * size
    columns = rows * graph.heads * 3 * (graph.labels + 1) * SUM
    held = edges if method in (None, "nodes") else graph.edges
    memory = held * EDGE + (graph.layers + 1) * (kept + columns) + spare + graph.parameters * ADAM
    return Cost(graph.layers * (linear + pairs + tables), graph.layers * moved, memory, tuple(found))
