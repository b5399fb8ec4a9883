"""The fuzz itself: the oracle is right, draws reach every corner, constants are all decided about, faults are seen."""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch

import relgraph.impl
from relgraph.impl import IMPLEMENTATIONS
from relgraph.impl.chunked import blocks
from relgraph.impl.triton import limits
from relgraph.labels import DistanceLabels
from tests.fuzz import __main__ as command
from tests.fuzz import compare, constants
from tests.fuzz.cases import Case, draw
from tests.fuzz.checks import AROUND, run
from tests.fuzz.compare import FuzzError, check
from tests.fuzz.frame import Frame
from tests.fuzz.labels import Distances, Edges, Sum, Written, has_parallel, parts_of, stands_alone, sums_edges
from tests.fuzz.oracle import solve

F64 = torch.float64


def number(*values):
    """``[1, 1, N, 1]`` or, of one number, a table ``[1, 1]``."""
    return torch.tensor(values, dtype=F64)


def by_hand(labels, tables, **options):
    """One query 2 and keys 1 and 3 with values 10 and 20, all of size 1."""
    frame = Frame(False, 1, (1,), (2,), (0,))
    case = Case(0, frame, labels(frame), 1, 1, 1, 1, **options)
    case.leaves = {
        "query": number(2.0).view(1, 1, 1, 1),
        "key": number(1.0, 3.0).view(1, 1, 2, 1),
        "value": number(10.0, 20.0).view(1, 1, 2, 1),
        **tables,
    }
    return solve(case, F64).values


def test_distances_by_hand():
    tables = {("key", 0): number([0.5], [-1.0]), ("value", 0): number([1.0], [2.0]), ("bias", 0): number(0.0, 0.25)}
    found = by_hand(lambda frame: Distances(frame, (0, 1), 0, 2, "none"), tables)
    scores = 2 * (1 + 0.5), 2 * (3 - 1.0) + 0.25
    total = math.exp(scores[0]) + math.exp(scores[1])
    first, second = (math.exp(score) / total for score in scores)
    assert found["lse"].item() == pytest.approx(math.log(total), rel=1e-15)
    assert found["z"].item() == pytest.approx(first * 11 + second * 22, rel=1e-15)
    assert found["mass", 0].flatten().tolist() == pytest.approx([first, second], rel=1e-15)


def test_parallel_edges_by_hand():
    """Alone each attends; under a default the labels of the pair add up, or the first counts."""
    listed = ((None, 0, 1, 0), (None, 0, 1, 1))
    tables = {("bias", 0): number(1.0, 2.0, 0.5)}

    def edges(default, duplicates):
        return lambda frame: Edges(frame, listed, False, 3, default, duplicates, torch.int64)

    alone = by_hand(edges(None, "error"), tables)
    assert alone["lse"].item() == pytest.approx(math.log(math.exp(6 + 1) + math.exp(6 + 2)))
    assert alone["z"].item() == pytest.approx(20)
    added = by_hand(edges(2, "sum"), tables)
    assert added["lse"].item() == pytest.approx(math.log(math.exp(2 + 0.5) + math.exp(6 + 1 + 2)))
    first = by_hand(edges(2, "first"), tables)
    assert first["lse"].item() == pytest.approx(math.log(math.exp(2 + 0.5) + math.exp(6 + 1)))


def test_a_row_that_sees_nothing_by_hand():
    nothing = by_hand(lambda frame: Distances(frame, (-2,), 0, 0, "none"), {})
    assert nothing["lse"].item() == -math.inf
    assert nothing["z"].item() == 0


def smooth(seed):
    """Whether a small step changes little, and something is learned."""
    case = draw(seed)
    huge = any(bool((leaf.abs() > 100).any()) for leaf in case.leaves.values())
    return bool(case.frame.q_len and case.frame.batch and case.num_labels) and not huge


@pytest.mark.parametrize("seed", [seed for seed in range(40) if smooth(seed)][:8])
def test_gradients_against_finite_differences(seed):
    case = draw(seed)
    generator = torch.Generator().manual_seed(1)
    moves = {name: torch.randn(leaf.shape, generator=generator, dtype=F64) for name, leaf in case.leaves.items()}

    def total(step):
        moved = replace(case, leaves={name: leaf + step * moves[name] for name, leaf in case.leaves.items()})
        values = solve(moved, F64).values
        return sum(float((grad * values[name]).nan_to_num(0, 0, 0).sum()) for name, grad in case.incoming.items())

    step = 1e-6
    truth = solve(case, F64)
    shares = [truth.values["grad", name] * move for name, move in moves.items()]
    slope, sizes = (float(sum(x.sum() for x in xs)) for xs in (shares, [share.abs() for share in shares]))
    assert (total(step) - total(-step)) / (2 * step) == pytest.approx(slope, abs=1e-6 * (1 + sizes))


def traits(case):
    """What may be special about a case, and whether it is."""
    frame, parts = case.frame, parts_of(case.labels)
    edges = [part for part in parts if isinstance(part, Edges)]
    mask = case.leaves.get("mask", torch.zeros(1))
    return {
        "packed": frame.packed,
        "no graphs": frame.packed and not frame.q_sizes,
        "an empty graph": frame.packed and 0 in frame.q_sizes,
        "batch 0": frame.batch == 0,
        "no queries": frame.q_len == 0,
        "no keys": frame.k_len == 0,
        "cross": frame.q_sizes != frame.k_sizes,
        "offsets differ": len(set(frame.offsets)) > 1,
        "before the keys": min(frame.offsets, default=0) < 0,
        "no labels": case.labels is None,
        "distances": any(isinstance(part, Distances) for part in parts),
        "dense": any(isinstance(part, Written) and not frame.packed for part in parts),
        "blocks": any(isinstance(part, Written) and frame.packed for part in parts),
        "raw": any(isinstance(part, Written) and part.raw for part in parts),
        "sum": isinstance(case.labels, Sum),
        "edges alone": stands_alone(case.labels),
        "parallel edges alone": has_parallel(case.labels),
        "summed edges": sums_edges(case.labels),
        "edges by batch row": any(part.by_row for part in edges),
        "edges over an id": any(isinstance(part.default, int) for part in edges),
        "edges over distances": any(isinstance(part.default, Distances) for part in edges),
        "edges over ids": any(isinstance(part.default, Written) for part in edges),
        "edges over edges": any(isinstance(part.default, Edges) for part in edges),
        "batch 0 over ids": frame.batch == 0 and any(isinstance(part.default, Written) for part in edges),
        "no numbers": case.size == 0,
        "no values": case.value_size == 0,
        "shared heads": case.kv_heads < case.heads,
        "bool mask": case.bool_mask is not None,
        "learned mask": case.learns_mask,
        "-inf in the mask": bool((mask == -math.inf).any()),
        "least numbers in the mask": bool((mask == torch.finfo(torch.float32).min).any()),
        "least numbers of float64": bool((mask == torch.finfo(F64).min).any()),
        "dropout": case.keep is not None,
        "weights": case.need_weights,
        "mass": case.need_mass,
        "causal": case.is_causal,
        "scale 0": case.scale == 0,
        "no labels at all": 0 in case.num_labels,
        **{f"offset {form}": case.q_offset == form for form in ("none", "int", "scalar", "each")},
        **{f"{n} tables": sum(isinstance(name, tuple) for name in case.leaves) == n for n in range(9)},
    }


def test_draws_reach_every_corner():
    found = Counter()
    for seed in range(400):
        found.update({name: int(there) for name, there in traits(draw(seed)).items()})
    assert not [name for name, count in found.items() if count == 0], "never drawn"


def test_a_seed_draws_the_same_again():
    one, other = draw(77), draw(77)
    assert one.describe() == other.describe()
    assert all(torch.equal(x, other.leaves[name]) for name, x in one.leaves.items())


def modules():
    """All modules with implementations in them, those of Triton where it is, and what they remember of plans."""
    yield relgraph.plan.memory
    for module in pkgutil.walk_packages(relgraph.impl.__path__, "relgraph.impl."):
        if limits.HAS_TRITON or not module.name.startswith(constants.NEEDS_TRITON):
            yield importlib.import_module(module.name)


def test_every_number_of_an_implementation_is_drawn_or_left_on_purpose():
    drawn = {(constant.module, constant.name) for constant in constants.DRAWN}
    fixed = {(module, name) for module, names in constants.FIXED.items() for name in names}
    there = {
        (module.__name__, name)
        for module in modules()
        for name, value in vars(module).items()
        if name.isupper() and type(value) in (int, float, bool)
    }
    first = {
        (importlib.import_module(m).__name__, n)
        for m, n in drawn | fixed
        if limits.HAS_TRITON or not m.startswith(constants.NEEDS_TRITON)
    }
    assert first <= there
    unknown = {(module, name) for module, name in there - drawn - fixed if not imported(module, name, drawn | fixed)}
    assert not unknown, "decide in tests/fuzz/constants.py what becomes of these"


def imported(module, name, known):
    """Whether it is the number of another module under the same name, or one of the plan."""
    return any(name == other for _, other in known) or name in ("DEAD", "EXTRA", "FIRST", "NOT_ATTENDING", "UNLABELED")


def test_a_constant_that_is_gone_is_an_error(monkeypatch):
    monkeypatch.setattr(
        constants, "DRAWN", (constants.Constant("relgraph.impl.chunked.blocks", "BLOCK_COLUMNS", (1,)),)
    )
    with (
        pytest.raises(AttributeError, match=r"names relgraph.impl.chunked.blocks.BLOCK_COLUMNS, which is gone"),
        constants.drawn(0),
    ):
        pass


def test_constants_are_put_back():
    before = blocks.BLOCK_SCORES, blocks.BLOCK_ROWS
    told = {}
    for seed in range(5):
        with constants.drawn(seed) as values:
            told.update(values)
            assert values.get("BLOCK_ROWS", before[1]) == blocks.BLOCK_ROWS
    assert {"BLOCK_SCORES", "BLOCK_ROWS"} <= set(told)
    assert before == (blocks.BLOCK_SCORES, blocks.BLOCK_ROWS)


def first_failure(seeds=range(40)):
    """The message of the first seed that fails under a planted fault."""
    for seed in seeds:
        try:
            run("impls", seed, ("dense",))
        except FuzzError as error:
            return "\n".join([str(error), *error.__notes__])
    return ""


def plant(monkeypatch, change):
    real = IMPLEMENTATIONS["dense"]
    monkeypatch.setitem(IMPLEMENTATIONS, "dense", lambda call: change(real, call))


FAULTS = {
    "a scale that is a little off": lambda real, call: real(replace(call, scale=call.scale * (1 + 1e-11))),
    "causal order one too far": lambda real, call: real(replace(call, q_offset=call.q_offset + 1)),
    "no dropout": lambda real, call: real(replace(call, dropout_p=0.0)),
    "a mask that is not seen": lambda real, call: real(replace(call, mask=None)),
    "an output without a gradient": lambda real, call: (a := real(call))._replace(lse=a.lse.detach()),
    "rounding to float32": lambda real, call: (a := real(call))._replace(output=a.output.float().to(a.output.dtype)),
    "a table that is not looked up": lambda real, call: real(
        replace(call, tables=(call.tables[0]._replace(bias=None), *call.tables[1:]))
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, monkeypatch):
    plant(monkeypatch, FAULTS[fault])
    message = first_failure()
    assert "impl='dense' in float" in message
    assert re.search(r"reproduce: python -m tests.fuzz --seeds 1 --first \d+ --only impls --impl dense$", message)


def test_a_refusal_that_is_not_due_is_found(monkeypatch):
    monkeypatch.setattr(
        "relgraph.functional.choice.refusal", lambda call, impl: "impl='dense' is tired" if impl == "dense" else None
    )
    assert "impl='dense' refuses what it must answer: impl='dense' is tired" in first_failure()


def test_an_answer_where_the_rule_refuses_is_found(monkeypatch):
    monkeypatch.setattr("relgraph.functional.choice.refusal", lambda call, impl: "no" if impl == "chunked" else None)
    seed = next(s for s in range(100) if draw(s).need_weights and draw(s).frame.batch)
    with pytest.raises(FuzzError, match=r"impl='chunked' raises .*, but which_impl tells no"):
        check(seed, ("chunked",))


def test_the_command(capsys, monkeypatch):
    assert command.main(["--seeds", "3", "--first", "3", "--impl", "dense", "none"]) == 0
    printed = capsys.readouterr().out
    assert "3 seeds from 3 in" in printed
    assert "dense 6" in printed
    plant(monkeypatch, FAULTS["a scale that is a little off"])
    assert command.main(["--seeds", "40", "--impl", "dense", "--stop"]) == 1
    printed = capsys.readouterr().out
    assert "1 failed: " in printed
    assert "reproduce: python -m tests.fuzz --seeds 1 --first" in printed
    assert "1 seeds from" not in printed


def test_what_raises_is_a_failure_too(capsys, monkeypatch):
    plant(monkeypatch, lambda real, call: {}["nothing"])
    assert command.main(["--seeds", "2", "--impl", "dense"]) == 1
    printed = capsys.readouterr().out
    assert "KeyError: 'nothing'" in printed
    assert "2 failed: 0 1" in printed


def sixty(name):
    """A check of sixty seeds."""
    for seed in range(60):
        run(name, seed)


def one_more(real):
    """A function whose first tensor is a little off."""

    def changed(*arguments, **options):
        given = real(*arguments, **options)
        first, *rest = given if isinstance(given, tuple) else (given,)
        return (first + 1e-3, *rest) if isinstance(given, tuple) else first + 1e-3

    return changed


@pytest.mark.parametrize(
    ("name", "where", "message"),
    [
        ("edges", "relgraph.edge_attention", "edge_attention over .* is off by"),
        ("conv", "relgraph.pyg.conv.edge_attention", "RelationConv.* is off by"),
        ("layer", "relgraph.nn.attention.relation_attention_with_aux", "RelationAttention.* is off by"),
        ("rows", "relgraph.relation_attention_with_aux", r"rows\(\d+, \d+\) by impl=None give other z"),
    ],
)
def test_faults_around_the_primitive_are_found(name, where, message, monkeypatch):
    module, attribute = where.rsplit(".", 1)
    home = importlib.import_module(module)
    monkeypatch.setattr(home, attribute, one_more(getattr(home, attribute)))
    with pytest.raises(FuzzError, match=f"(?s){message}"):
        sixty(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda real, labels: (real(labels)[0].clamp(max=1), real(labels)[1]), "to_dense says 1 of pair"),
        (lambda real, labels: tuple(x[:, :, 1:] for x in real(labels)), "has shapes"),
    ],
)
def test_faults_of_labels_are_found(change, message, monkeypatch):
    real = DistanceLabels.to_dense
    monkeypatch.setattr(DistanceLabels, "to_dense", lambda labels: change(real, labels))
    with pytest.raises(FuzzError, match=message):
        sixty("labels")


def test_wrong_counts_are_found(monkeypatch):
    real = DistanceLabels.describe
    monkeypatch.setattr(DistanceLabels, "describe", lambda labels: replace(real(labels), not_attending=-5))
    with pytest.raises(FuzzError, match="describe tells .*, -5, "):
        sixty("labels")


def test_every_check_runs_by_the_command(capsys):
    assert command.main(["--seeds", "1", "--first", "4"]) == 0
    assert command.main(["--seeds", "1", "--only", *AROUND]) == 0
    assert "1 seeds from 0" in capsys.readouterr().out


def test_compare_sees_shapes_and_infinities():
    zero, bound = torch.zeros(2), torch.full((2,), 1e-3)
    with pytest.raises(FuzzError, match=r"x has shape \[1\], must be \[2\]"):
        compare._compare("x", torch.zeros(1), zero, bound)
    with pytest.raises(FuzzError, match=r"x is nan at \(1,\), must be 0"):
        compare._compare("x", torch.tensor([0.0, math.nan]), zero, bound)
    with pytest.raises(FuzzError, match=r"off by 0.002 where rounding explains 0.001"):
        compare._compare("x", torch.tensor([0.0005, 0.002]), zero, bound)
    compare._compare("x", torch.tensor([0.0005, -0.001]), zero, bound)
