"""``python -m tests.distributed.region_fuzz --seeds 1000``: drawn calls, split over processes, equal one process.

The calls are those of ``tests.fuzz``. A seed also draws how rows are split, which part of a mask each process gives, how
backward runs, what another thread does meanwhile, and a mistake of one process, which both must refuse alike.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path
from random import Random

import torch
from torch import Tensor, distributed
from torch.utils.checkpoint import checkpoint

import relgraph as rg
from relgraph.call.operands import POSITIONAL
from relgraph.distributed.together import KINDS
from tests.distributed.context_cases import run_in_thread
from tests.distributed.worlds import run_world
from tests.fuzz.cases import Case, draw
from tests.fuzz.compare import Arguments
from tests.fuzz.frame import Frame

F64 = torch.float64
FAR = 1e-8
"""A difference that rounding does not explain, relative to the largest number."""

MISTAKES = ("dtype", "table", "need_weights", "impl", "length", "mask")


class Drawn:
    """How the call of a seed is split over some processes.

    Attributes:
        case: the call.
        layout: as ``context_parallel`` takes it.
        queries: which rows of the queries each process holds.
        keys: which keys.
        own_keys: whether a mask of one row for all has the keys of this process.
        own_ids: whether raw ids have the rows of this process.
        impl: as given.
        saved: None, or ``use_reentrant`` of checkpointing.
        after: whether backward runs after the block.
        threaded: on which process another thread attends meanwhile, or None.
        mistake: what is wrong, and on which process.
    """

    def __init__(self, seed: int, size: int) -> None:
        rng = Random(f"region {seed}")
        self.layout = rng.choice(["even", "head-tail"])
        unit = size if self.layout == "even" else 2 * size
        lengths = [unit * rng.choice([1, 1, 1, 2, 3, 4, *([0] if rng.random() < 0.2 else [])]) for _ in "qk"]
        lengths[1] = lengths[1] if rng.random() < 0.4 else lengths[0]
        self.queries, self.keys = (rg.distributed.Layout(length, size, self.layout) for length in lengths)
        self.case = _case(seed, _frame(rng, self.queries.length, self.keys.length))
        self.own_keys, self.own_ids = rng.random() < 0.6, rng.random() < 0.3
        # ids of own rows: in no doubt where row 0 is
        self.own_ids &= not self.case.is_causal and self.queries.length > 0
        self.impl = self._impl(rng)
        self.saved, self.after = rng.choice([None, None, True, False]), rng.random() < 0.5
        self.threaded = rng.choice([None, 0, 1])
        self.mistake = rng.choice(MISTAKES), rng.choice([0, 1])

    def _impl(self, rng: Random) -> str | None:
        """One that may answer; with dropout one whose mask is the same in every part, or there is no dropout."""
        call = Arguments(self.case, F64)
        named = {"need_label_mass": self.case.need_mass}
        refused = rg.which_impl(*call.positional, **call.options, **call.more, **named).refused
        may = [name for name in ("native", "chunked", "dense", "reference") if name not in refused]
        if self.case.dropout_p:
            may = [name for name in may if name in ("native", "chunked")]
            self.case.dropout_p *= bool(may)
        return rng.choice(may if self.case.dropout_p else [None, None, *may])

    def __repr__(self) -> str:
        mistake = f"{self.mistake[0]} on process {self.mistake[1]}"
        return (
            f"{self.layout}, impl {self.impl}, reentrant {self.saved}, backward after {self.after}, "
            f"thread {self.threaded}, mistake {mistake}\n{self.case.describe()}"
        )


def _frame(rng: Random, q_len: int, k_len: int) -> Frame:
    """Pairs of so many queries and keys."""
    packed, one = rng.random() < 0.35, rng.choice([0, 0, rng.randint(-4, 4)])
    if not packed:
        batch = rng.choice([1, 2, 3, *([0] if rng.random() < 0.1 else [])])
        same = rng.random() < 0.7
        return Frame(False, batch, (q_len,), (k_len,), tuple(one if same else rng.randint(-5, 9) for _ in range(batch)))
    cuts = rng.choice([0, 1, 2, 3])

    def sizes(length: int) -> tuple[int, ...]:
        ends = [0, *sorted(rng.randint(0, length) for _ in range(cuts)), length]
        return tuple(b - a for a, b in pairwise(ends))

    q_sizes = sizes(q_len)
    k_sizes = q_sizes if q_len == k_len and rng.random() < 0.7 else sizes(k_len)
    return Frame(True, 1, q_sizes, k_sizes, (one,) * len(q_sizes))


def _case(seed: int, frame: Frame) -> Case:
    """A call that a region takes: without weights of attention, and without vectors of edges."""
    case = draw(seed, frame)
    for name in ("attr", "edge_key", "edge_value"):
        case.leaves.pop(name, None)
        case.learned.discard(name)
    case.need_weights, case.keep = False, None
    case.incoming.pop("weights", None)
    if not case.incoming:
        case.incoming["z"] = torch.ones(frame.batch, case.heads, frame.q_len, case.value_size, dtype=F64)
    if any(case.num_labels):
        case.need_mass = case.need_mass or not any(isinstance(name, tuple) for name in case.leaves)
    case.learned.add("query")
    return case


class Problem:
    """The call on one process, and with the rows of a process of several."""

    def __init__(self, drawn: Drawn, rank: int | None = None) -> None:
        self.drawn, self.rank = drawn, rank
        call = Arguments(drawn.case, F64)
        self.leaves = {name: leaf for name, leaf in call.leaves.items() if name in drawn.case.learned}
        self.call, self.axis = call, 0 if drawn.case.frame.packed else 2

    def given(self) -> dict:
        """The arguments by name, cut to this process."""
        found = dict(zip(POSITIONAL, self.call.positional, strict=True)) | self.call.options | self.call.more
        found |= {"need_label_mass": self.drawn.case.need_mass, "need_lse": True, "impl": self.drawn.impl}
        if self.rank is None:
            return found | {"impl": self.drawn.impl if self.drawn.case.dropout_p else "reference"}
        drawn = self.drawn
        for name, layout in (("query", drawn.queries), ("key", drawn.keys), ("value", drawn.keys)):
            found[name] = layout.shard(found[name], self.rank, self.axis)
        rows = found["row_scores"]
        if isinstance(rows, tuple):
            found["row_scores"] = tuple(None if x is None else self._of_rows(x, self.axis) for x in rows)
        elif rows is not None:
            found["row_scores"] = self._of_rows(rows, self.axis)
        if isinstance(found["labels"], Tensor) and drawn.own_ids:
            found["labels"] = self._of_rows(found["labels"], -2)
        if found["attn_mask"] is not None:
            found["attn_mask"] = self._mask(found["attn_mask"])
        return found

    def _of_rows(self, x: Tensor, axis: int) -> Tensor:
        return self.drawn.queries.shard(x, self.rank, axis)

    def _mask(self, mask: Tensor) -> Tensor:
        """Own rows and all keys, or one row for all and all keys or those of this process."""
        keys = self.drawn.keys
        if mask.dim() > 1 and mask.shape[-2] == self.drawn.queries.length != 1:
            if keys.length == keys.processes and mask.shape[-1] == 1:  # it would be a mask of its own key
                mask = mask.expand(*mask.shape[:-1], keys.length)
            return self._of_rows(mask, -2)
        if mask.dim() and mask.shape[-1] == keys.length != 1 and self.drawn.own_keys:
            return keys.shard(mask, self.rank, -1)
        return mask

    def attend(self, *_: Tensor) -> tuple[Tensor, ...]:
        """Output, log-sum-exp and masses, rows first after batch and heads."""
        z, aux = rg.relation_attention_with_aux(**self.given())
        mass = aux.label_mass
        mass = () if mass is None else mass if isinstance(mass, tuple) else (mass,)
        found = (z, aux.lse, *mass)
        return tuple(x.transpose(0, 1)[None] if self.axis == 0 else x for x in found)

    def forward(self, seed: int) -> dict:
        """The outputs by name."""
        torch.manual_seed(seed + (self.rank or 0))  # process 0 draws what one process draws
        if self.rank is None or self.drawn.saved is None:
            found = self.attend()
        else:
            found = checkpoint(self.attend, self.leaves["query"], use_reentrant=self.drawn.saved)
        return dict(zip(["z", "lse", *(("mass", part) for part in range(len(found) - 2))], found, strict=True))

    def backward(self, outputs: dict) -> None:
        """The gradients, in the leaves."""
        taken = {name: x for name, x in self.drawn.case.incoming.items() if outputs[name].requires_grad}
        if taken:
            incoming = [x if self.rank is None else self._of_rows(x, 2) for x in taken.values()]
            torch.autograd.backward([outputs[name] for name in taken], incoming)


def spoiled(given: dict, mistake: str) -> dict:
    """The arguments with a mistake."""
    query, key = given["query"], given["key"]
    axis = 2 if key.dim() == 4 else 0
    longer = key.new_zeros([size + (at == axis) for at, size in enumerate(key.shape)])
    wrong = {
        "dtype": {"query": query.float()},
        "table": {"bias_table": torch.ones(7, 77, dtype=F64)},
        "need_weights": {"need_weights": True},
        "impl": {"impl": "no"},
        "length": {"key": longer},
        "mask": {"attn_mask": torch.zeros(3, 5, 77, 99, dtype=F64)},
    }
    return given | wrong[mistake]


def refusal(problem: Problem, rank: int) -> str:
    """What a process raises where one has made a mistake."""
    mistake, where = problem.drawn.mistake
    given = problem.given()
    try:
        rg.relation_attention_with_aux(**(spoiled(given, mistake) if rank == where else given))
    except KINDS as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def difference(found: Tensor, wanted: Tensor) -> float:
    """The largest, relative to the largest number; infinite where one of two is infinite or not a number."""
    found, wanted = found.detach(), wanted.detach()
    if found.shape != wanted.shape or not torch.equal(found.isfinite(), wanted.isfinite()):
        return float("inf")
    finite = wanted.isfinite()
    found, wanted = found[finite], wanted[finite]
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1.0)) if wanted.numel() else 0.0


def compare(mesh, seed: int) -> list[str]:
    """What is wrong on this process."""
    drawn, rank = Drawn(seed, mesh.size()), mesh.get_local_rank()
    alone, mine = Problem(drawn), Problem(drawn, rank)
    wanted = alone.forward(seed)
    alone.backward(wanted)
    x = torch.ones(1, 1, 3, 2)
    seen = None
    with rg.distributed.context_parallel(mesh, layout=drawn.layout):
        found = mine.forward(seed)
        if drawn.threaded == rank:
            seen = run_in_thread(lambda: rg.relation_attention(x, x, x, None).equal(x))
        if not drawn.after:
            mine.backward(found)
    if drawn.after:
        mine.backward(found)
    with rg.distributed.context_parallel(mesh, layout=drawn.layout):  # one that knows no call
        refused = refusal(mine, rank)
    off = {str(name): difference(found[name], drawn.queries.shard(x, rank, 2)) for name, x in wanted.items()}
    for name, leaf in mine.leaves.items():
        total = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.contiguous()
        distributed.all_reduce(total)
        theirs = alone.leaves[name].grad
        off[f"gradient of {name}"] = difference(total, torch.zeros_like(total) if theirs is None else theirs)
    wrong = [f"{name} is off by {far:.2g}" for name, far in off.items() if not far <= FAR]
    if seen not in (None, True):
        wrong.append(f"another thread got {seen}")
    texts = [None] * mesh.size()
    distributed.all_gather_object(texts, refused)
    if len(set(texts)) > 1 or texts[0] == "no error":
        wrong.append(f"refusals {texts}")
    return wrong


def seeds(mesh, first: int, count: int):
    """What is wrong with each of some seeds, by seed; an error that is no refusal ends the world."""
    for seed in range(first, first + count):
        try:
            found = compare(mesh, seed)
        except KINDS as error:
            found = [f"{type(error).__name__}: {error}"]
        except Exception as error:
            error.add_note(f"seed {seed}: {Drawn(seed, mesh.size())}")
            raise
        if found:
            found = [f"seed {seed}: {'; '.join(found)}\n{Drawn(seed, mesh.size())}"]
        yield seed, found


def main() -> int:
    """Run seeds and print what fails; 1 where something does."""
    parser = argparse.ArgumentParser("python -m tests.distributed.region_fuzz", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first (0)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run_world(2, Path(folder), seeds, arguments.first, arguments.seeds)
    wrong = [text for texts in found.values() for text in (texts[0] or texts[1])]
    print("\n\n".join([*wrong, f"{len(wrong)} of {arguments.seeds} seeds failed"]))
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
