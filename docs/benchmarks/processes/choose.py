"""Which mode fits a machine and takes least time, by the model and by nothing else.

The machine is hypothetical: each number of it is an argument. Messages cost no time of their own, links are as fast as
they are said to be, the processes of a group that spans several nodes send everything over the slower link, and what
can travel while something is computed hides behind it as far as it fits. A mode that does not fit is never taken, and
one that cannot be split that way is named with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from docs.benchmarks.processes.model import METHODS, Cost, Mode, graph_cost, sequence_cost
from docs.benchmarks.processes.work import Graph, Sequences

GB = 1e9


@dataclass(frozen=True)
class Machine:
    """Processes with a device each, several to a node.

    Args:
        processes: P.
        node: processes of one node.
        flops: operations that a device sustains in a second.
        bandwidth: bytes a second between a device and its memory.
        memory: bytes of a device.
        near: bytes a second that a process sends within its node.
        far: bytes a second that a process sends to other nodes.
    """

    processes: int = 64
    node: int = 8
    flops: float = 300e12
    bandwidth: float = 2e12
    memory: float = 80 * GB
    near: float = 200 * GB
    far: float = 25 * GB


class Plan(NamedTuple):
    """One mode on one machine.

    Attributes:
        family: what it is called, whatever its split.
        mode: its split; None if there is none, as ``why`` says.
        cost: by the model.
        near: bytes that a process sends within its node.
        far: bytes that it sends to others.
        computing: seconds.
        waited: seconds of sending in which nothing is computed.
        hidden: seconds of sending while something is computed.
        why: why it cannot be taken; empty if it can.
    """

    family: str
    mode: Mode | None = None
    cost: Cost = Cost(0.0, 0.0, 0.0, ())
    near: float = 0.0
    far: float = 0.0
    computing: float = 0.0
    waited: float = 0.0
    hidden: float = 0.0
    why: str = ""

    @property
    def seconds(self) -> float:
        """Of one step: what is hidden costs what computing does not cover."""
        return self.waited + max(self.computing, self.hidden)

    @property
    def order(self) -> tuple[bool, bool, float]:
        """What can be taken comes first, then what takes less time; what has no split comes last."""
        return bool(self.why), self.mode is None, self.seconds


def planned(family: str, mode: Mode, cost: Cost, machine: Machine) -> Plan:
    """The times of a mode."""
    near = far = waited = hidden = 0.0
    for transfer in cost.transfers:
        inside = transfer.span <= machine.node
        near, far = (near + transfer.sent, far) if inside else (near, far + transfer.sent)
        seconds = transfer.sent / (machine.near if inside else machine.far)
        waited, hidden = (waited, hidden + seconds) if transfer.hidden else (waited + seconds, hidden)
    computing = max(cost.flops / machine.flops, cost.moved / machine.bandwidth)
    why = "" if cost.memory <= machine.memory else f"needs {cost.memory / GB:,.0f} GB"
    return Plan(family, mode, cost, near, far, computing, waited, hidden, why)


FAMILIES = ("one process", "DDP", "FSDP2", "heads", *METHODS, *(f"heads + {method}" for method in METHODS))


def sequence_plans(work: Sequences, machine: Machine) -> list[Plan]:
    """The best split of each family, by the model; those that cannot be taken last."""
    found = [min(_of_family(family, work, machine), key=lambda plan: plan.order) for family in FAMILIES]
    return sorted(found, key=lambda plan: plan.order)


def _of_family(family: str, work: Sequences, machine: Machine) -> list[Plan]:
    """Every split of a family, or the reason why there is none."""
    why: list[str] = []
    found = []
    for mode in _splits(family, machine.processes):
        refused = refusal(work, mode)
        if refused:
            why.append(refused)
        else:
            found.append(planned(family, mode, sequence_cost(work, mode), machine))
    return found or [Plan(family, why=why[-1] if why else "has no split")]


def _splits(family: str, processes: int) -> Iterator[Mode]:
    """The splits of a family over all processes."""
    if family == "one process":
        yield Mode()
        return
    if family in ("DDP", "FSDP2"):
        yield Mode(data=processes, sharded=family == "FSDP2")
        return
    by_heads = family.startswith("heads")
    method = None if family == "heads" else family.removeprefix("heads + ")
    for heads in _divisors(processes) if by_heads else [1]:
        if by_heads and heads == 1:
            continue
        for rows in _divisors(processes // heads) if method else [1]:
            if method and rows == 1:
                continue
            data = processes // heads // rows
            for sharded in (False, True):
                if not (sharded and data * rows == 1):
                    yield Mode(data, sharded, heads, rows, method)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def refusal(work: Sequences, mode: Mode) -> str:
    """Why the work cannot be split that way; empty if it can."""
    if work.batch % mode.data:
        return f"a batch of {work.batch} has no {mode.data} equal parts"
    groups = mode.heads * (mode.rows if mode.method == "ulysses" else 1)
    if work.kv_heads % groups:
        return f"{work.kv_heads} key heads have no {groups} equal parts"
    runs = mode.rows * (2 if work.is_causal else 1)
    if work.n % runs:
        return f"{work.n} rows have no {runs} equal runs"
    return ""


def graph_plans(graph: Graph, machine: Machine) -> list[Plan]:
    """Ways to attend over the edges of one graph; those that cannot be taken last."""
    found = [planned("one process", Mode(), graph_cost(graph, None, 1), machine)]
    for method in ("nodes", *METHODS):
        if method == "ulysses" and graph.heads % machine.processes:
            found.append(Plan(method, why=f"{graph.heads} heads have no {machine.processes} equal parts"))
            continue
        mode = Mode(rows=machine.processes, method=method)
        found.append(planned(method, mode, graph_cost(graph, method, machine.processes), machine))
    return sorted(found, key=lambda plan: plan.order)


def table(plans: list[Plan]) -> list[dict[str, object]]:
    """The plans as rows of a table; the first that can be taken is the one that the model takes."""
    return [_row(plan, taken=at == 0 and not plan.why) for at, plan in enumerate(plans)]


def _row(plan: Plan, *, taken: bool) -> dict[str, object]:
    verdict = "taken" if taken else plan.why
    names = ("sent in node, GB", "sent beyond, GB", "computing, s", "waiting, s", "hidden, s", "step, s", "memory, GB")
    if plan.mode is None:
        return {"mode": plan.family, "split": "–", **dict.fromkeys(names, "–"), "verdict": verdict}
    numbers = (
        plan.near / GB, plan.far / GB, plan.computing, plan.waited, plan.hidden, plan.seconds, plan.cost.memory / GB
    )  # fmt: skip
    shown = dict(zip(names, (f"{number:,.3g}" for number in numbers), strict=True))
    return {"mode": plan.family, "split": plan.mode.split, **shown, "verdict": verdict}
