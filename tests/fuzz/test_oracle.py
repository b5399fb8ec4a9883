"""The fuzz itself: the oracle is right, draws reach every corner, constants are all decided about, faults are seen."""

from __future__ import annotations

import importlib
import math
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch

import relgraph.impl
import relgraph.labels.memory
from relgraph.impl import IMPLEMENTATIONS
from relgraph.labels import DistanceLabels
from relgraph.score import DOT
from tests.fuzz import __main__ as command
from tests.fuzz.cases import KINDS, Case, draw, lose_keys
from tests.fuzz.checks import run
from tests.fuzz.compare import FuzzError, check
from tests.fuzz.frame import Frame
from tests.fuzz.labels import Distances, Edges, Sum, Written, has_parallel, parts_of, stands_alone, sums_edges
from tests.fuzz.oracle import solve
from tests.fuzz.scores import ACTIVATIONS, ARC, GATES, Score, leaky, softcap

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


def two_labels(frame):
    """Of the two keys, the first has the label 0 and the second 1."""
    return Distances(frame, (0, 1), 0, 2, "none")


def softmax(*scores):
    """The weights."""
    grown = [math.exp(score) for score in scores]
    return [x / sum(grown) for x in grown]


def test_tables_by_hand():
    """Those of values and the log-sum-exp; then a key and a bias table with a batch axis."""
    tables = {("key", 0): number([0.5], [-1.0]), ("value", 0): number([1.0], [2.0]), ("bias", 0): number(0.0, 0.25)}
    batched = {("key", 0): tables["key", 0].view(1, 1, 2, 1), ("bias", 0): tables["bias", 0].view(1, 1, 2)}
    scores = 2 * (1 + 0.5), 2 * (3 - 1.0) + 0.25
    first, second = softmax(*scores)
    found = by_hand(two_labels, tables)
    assert found["lse"].item() == pytest.approx(math.log(sum(map(math.exp, scores))), rel=1e-15)
    assert found["z"].item() == pytest.approx(first * 11 + second * 22, rel=1e-15)
    for given in (found, by_hand(two_labels, batched)):
        assert given["mass", 0].flatten().tolist() == pytest.approx([first, second], rel=1e-14)
    nothing = by_hand(lambda frame: Distances(frame, (-2,), 0, 0, "none"), {})
    assert (nothing["lse"].item(), nothing["z"].item()) == (-math.inf, 0)


PARALLEL = ((None, 0, 1, 0), (None, 0, 1, 1))
"""Two edges from key 1."""


def over(default, duplicates, count):
    return lambda frame: Edges(frame, PARALLEL, False, count, default, duplicates, torch.int64)


def test_parallel_edges_by_hand():
    """Alone each attends; under a default the labels of the pair add up, or the first counts."""
    tables = {("bias", 0): number(1.0, 2.0, 0.5)}
    alone = by_hand(over(None, "error", 3), tables)
    assert alone["lse"].item() == pytest.approx(math.log(math.exp(6 + 1) + math.exp(6 + 2)))
    assert alone["z"].item() == pytest.approx(20)
    added = by_hand(over(2, "sum", 3), tables)
    assert added["lse"].item() == pytest.approx(math.log(math.exp(2 + 0.5) + math.exp(6 + 1 + 2)))
    first = by_hand(over(2, "first", 3), tables)
    assert first["lse"].item() == pytest.approx(math.log(math.exp(2 + 0.5) + math.exp(6 + 1)))


def test_edge_vectors_by_hand():
    """Both edges of a pair whose labels add up carry their vectors; only the first where it alone counts."""
    leaves = {
        "attr": number([0.5, 0.0], [1.0, 2.0]), "edge_key": number([1.0, -1.0]), "edge_value": number([10.0, 1.0])
    }  # fmt: skip

    def found(default, duplicates):
        return by_hand(over(default, duplicates, 2), leaves)["z"].item()

    first, second = softmax(2.0, 6.0 + 2 * (0.5 + 1.0 - 2.0))
    assert found(0, "sum") == pytest.approx(first * 10 + second * (20 + 5 + 10 + 2))
    first, second = softmax(2.0, 6.0 + 2 * 0.5)
    assert found(0, "first") == pytest.approx(first * 10 + second * (20 + 5))
    one, other = softmax(6.0 + 2 * 0.5, 6.0 + 2 * (1.0 - 2.0))
    assert found(None, "error") == pytest.approx(one * (20 + 5) + other * (20 + 10 + 2))


KEY = number([0.5], [-1.0])
MASK = number(0.0, -1.0).view(1, 1, 1, 2)
SCORED = {
    "the bias comes before a function of scores, the mask after it": (
        {("bias", 0): number(-4.0, 0.0), "mask": MASK}, Score("function", ARC), (math.atan(-2.0), math.atan(6.0) - 1)
    ),
    "another function": (
        {("bias", 0): number(-4.0, 0.0), "mask": MASK}, Score("function", leaky(0.5, None)), (-1.0, 6.0 - 1.0)
    ),
    "biases of the query": (
        {("key", 0): KEY, "content_bias": number([3.0]), "position_bias": number([-0.5])}, None,
        ((2 + 3) * 1 + (2 - 0.5) * 0.5, (2 + 3) * 3 - (2 - 0.5) * 1),
    ),
    "additive": (
        {"weight": number(0.5), ("key", 0): KEY}, Score("additive", ACTIVATIONS[1]),
        (0.5 * math.tanh(2 + 1 + 0.5), 0.5 * math.tanh(2 + 3 - 1)),
    ),
    "bilinear": (
        {"weight": number(4.0, -1.0).view(2, 1, 1), ("key", 0): KEY}, Score("bilinear"),
        (2 * 4 * 1 + 2 * 0.5, -2 * 3 - 2 * 1.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SCORED)
def test_scores_by_hand(what):
    leaves, score, wanted = SCORED[what]
    found = by_hand(two_labels, leaves, score=score)
    assert found["mass", 0].flatten().tolist() == pytest.approx(softmax(*wanted), rel=1e-14)


def test_a_sink_by_hand():
    found = by_hand(two_labels, {"sink": number(-1.0).view(1)})
    assert found["mass", 0].flatten().tolist() == pytest.approx(softmax(2.0, 6.0, -1.0)[:2], rel=1e-14)


def test_rows_and_maps_of_values_by_hand():
    rows = {("rows", 0): number(0.5, -3.0).view(1, 1, 1, 2), "maps": number(3.0, 5.0).view(2, 1, 1)}
    first, second = softmax(2.0 + 0.5, 6.0 - 3.0)
    assert by_hand(two_labels, rows)["z"].item() == pytest.approx(first * 30 + second * 100)
    bases = {"coefficients": number([1.0], [2.0]), "bases": number(3.0).view(1, 1, 1)}
    first, second = softmax(2.0, 6.0)
    assert by_hand(two_labels, bases)["z"].item() == pytest.approx(first * 30 + second * 120)


CURVES = [softcap(0.5), softcap(50.0), leaky(0.0, None), leaky(1.5, None), *ACTIVATIONS]


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.name)
def test_curves_are_what_the_library_is_given(curve):
    x = torch.linspace(-30, 30, 1201, dtype=F64, requires_grad=True)
    if isinstance(curve.made, str):
        value = relgraph.score.ACTIVATIONS[curve.made](x)
    else:
        value = curve.value(x) if curve.made is None else curve.made(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    x, value = x.detach(), value.detach()
    assert torch.allclose(curve.value(x), value, rtol=1e-14, atol=1e-14)
    at_the_kink = curve.jump * (x == 0)
    assert bool(((curve.slope(x) - slope).abs() <= 1e-14 + at_the_kink).all())
    for size in (1e-6, 1e-2, 1.0):  # errors of value and slope hold what happens within the error of the argument
        found = curve.at(x, torch.full_like(x, size), 0.0)
        for moved in (x - size, x - 0.3 * size, x + 0.7 * size, x + size):
            assert bool(((curve.value(moved) - found.value).abs() <= found.error + 1e-14).all())
            assert bool(((curve.slope(moved) - found.slope).abs() <= found.slope_error + 1e-14).all())
        assert bool((found.error <= size * curve.steepest + 1e-14).all())  # and are no wider than needed
        assert bool((found.slope_error <= curve.bend * size + 1e-14)[x.abs() > size].all())


def special(case):
    """The names of what the call has besides the dot product."""
    names = {str(name[0]) if isinstance(name, tuple) else name for name in case.leaves}
    names &= {"rows", "maps", "bases", "edge_key", "edge_value"}
    return names if case.score is None else {*names, repr(case.score)}


def smooth(seed):
    """Whether a small step changes little, and something is learned."""
    case = draw(seed)
    huge = any(bool((leaf.abs() > 100).any()) for leaf in case.leaves.values())
    return bool(case.frame.q_len and case.frame.batch and case.num_labels) and not huge


def seeds_to_differentiate():
    """The first eight, and the first of every kind of score and of everything else that a call may have besides."""
    some = [seed for seed in range(120) if smooth(seed)]
    found = {}
    for seed in some:
        for name in special(draw(seed)):
            found.setdefault(name, seed)
    return sorted({*some[:8], *found.values()})


@pytest.mark.parametrize("seed", seeds_to_differentiate())
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
        "wider mask": case.mask_dtype is not None,
        "rows of a long batch": not frame.packed and frame.q_len >= 24,
        "keys of -inf": case.lost is not None and bool(case.lost.any()),
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
        **{
            f"{n} tables": sum(name[0] in KINDS for name in case.leaves if isinstance(name, tuple)) == n
            for n in range(9)
        },
        **{name: name in special(case) for name in ("rows", "maps", "bases", "edge_key", "edge_value")},
        **{kind: case.score is not None and case.score.kind == kind for kind in ("function", "additive", "bilinear")},
        "nothing besides": not special(case),
        "additive over edges": isinstance(case.labels, Edges) and repr(case.score).startswith("additive"),
        "maps for each head": any(name in case.leaves and case.leaves[name].dim() == 4 for name in ("maps", "bases")),
        **{
            f"tables of {kind} by batch row": any(
                name[0] == kind and by_batch_row(name, x) for name, x in case.leaves.items()
            )
            for kind in KINDS
        },
        "tables by batch row of edges alone": stands_alone(case.labels)
        and any(by_batch_row(name, x) for name, x in case.leaves.items() if name[0] in KINDS),
        **{name: name in case.leaves for name in ("content_bias", "position_bias", "sink", *GATES)},
        "both biases of a sum": isinstance(case.labels, Sum)
        and {"content_bias", "position_bias"} <= case.leaves.keys(),
        "vectors for edges alone": stands_alone(case.labels) and "attr" in case.leaves,
        "vectors over all pairs": not stands_alone(case.labels) and "attr" in case.leaves,
        "summed edges with vectors": sums_edges(case.labels) and "attr" in case.leaves,
        "rows when packed": frame.packed and "rows" in special(case),
        "rows of a sum": isinstance(case.labels, Sum) and "rows" in special(case),
    }


def by_batch_row(name, table):
    """Whether a table has a batch axis."""
    return table.dim() == (3 if name[0] == "bias" else 4)


def test_draws_reach_every_corner():
    found = Counter()
    for seed in range(400):
        case = draw(seed)
        lose_keys(case)
        found.update({name: int(there) for name, there in traits(case).items()})
    assert not [name for name, count in found.items() if count == 0], "never drawn"


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
    "an output without a gradient": lambda real, call: (a := real(call))._replace(lse=a.lse.detach()),
    "rounding to float32": lambda real, call: (a := real(call))._replace(output=a.output.float().to(a.output.dtype)),
    "a scale that is off in half types": lambda real, call: real(
        call if call.query.dtype.itemsize > 2 else replace(call, scale=call.scale * 1.02)
    ),
    "scores rounded to a half type": lambda real, call: (a := real(call))._replace(
        lse=a.lse.to(call.query.dtype).to(a.lse.dtype)
    ),
    "a score that is not applied": lambda real, call: real(replace(call, score=DOT)),
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
    plant(monkeypatch, lambda real, call: {}["nothing"])
    assert command.main(["--seeds", "1", "--impl", "dense"]) == 1
    assert "KeyError: 'nothing'" in capsys.readouterr().out


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
        ("conv", "relgraph.pyg.edge_layer.attend_nodes", "RelationConv.* is off by"),
        ("layer", "relgraph.nn.attention.attend", "RelationAttention.* is off by"),
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
