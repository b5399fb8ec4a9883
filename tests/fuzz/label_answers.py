"""What labels answer by themselves, held to their description: ``to_dense``, ``describe``, and slices of them."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

import relgraph as rg
from tests.fuzz.cases import KINDS, Case, draw
from tests.fuzz.compare import FuzzError
from tests.fuzz.frame import Frame
from tests.fuzz.labels import Edges, Single, Written, has_parallel, is_one_matrix, offset_given, parts_of
from tests.fuzz.oracle import solve
from tests.fuzz.scores import given

F64 = torch.float64


def check_labels(seed: int) -> None:
    """``to_dense``, ``rows``, ``cols`` and ``describe`` of the labels of a seed, pair by pair."""
    rng, case = Random(f"labels {seed}"), draw(seed)
    if (
        case.frame.batch == 0
    ):  # labels that are alike in all rows have one row of answers, which no row of the frame has
        return
    for part in parts_of(case.labels):
        labels = part.build()
        if isinstance(labels, rg.Labels):
            what = f"seed {seed}: {part}"
            _check_counts(what, part, labels, case.frame)
            if is_one_matrix(part):
                start = rng.randint(0, labels.q_len)
                stop = rng.randint(start, labels.q_len)
                rows, cols = range(labels.q_len), range(labels.k_len)
                _check_pairs(f"{what}: to_dense", part, labels, rows, cols)
                some = labels.rows(start, stop)
                _check_pairs(f"{what}: rows({start}, {stop})", part, some, range(start, stop), cols)
                start = rng.randint(0, labels.k_len)
                stop = rng.randint(start, labels.k_len)
                some = labels.cols(start, stop)
                _check_pairs(f"{what}: cols({start}, {stop})", part, some, rows, range(start, stop))
            else:
                _check_no_matrix(what, labels)


def _check_pairs(what: str, part: Single, labels: rg.Labels, rows: range, cols: range) -> None:
    ids, attend = labels.to_dense()
    wanted = (labels.batch_size, len(rows), len(cols))
    if tuple(ids.shape) != wanted or tuple(attend.shape) != wanted:
        raise FuzzError(f"{what} has shapes {list(ids.shape)} and {list(attend.shape)}, must be {list(wanted)}")
    for b in range(wanted[0]):
        for row, i in enumerate(rows):
            for col, j in enumerate(cols):
                found = part.at(b, i, j)
                code = -2 if not found else found[0][0] if found[0] else -1
                got = int(ids[b, row, col]) if attend[b, row, col] else -2
                if got != code or (code == -2 and ids[b, row, col] != -1):
                    raise FuzzError(f"{what} says {got} of pair {b, i, j}, must be {code}")


def _check_no_matrix(what: str, labels: rg.Labels) -> None:
    try:
        labels.to_dense()
    except ValueError:
        return
    raise FuzzError(f"{what}: parallel edges that each count have a dense form")


def _check_counts(what: str, part: Single, labels: rg.Labels, frame: Frame) -> None:
    """How many pairs carry each label; parallel edges that each count, each; pairs across graphs do not count."""
    numbers, unlabeled, hidden, pairs = [0] * part.num_labels, 0, 0, 0
    for b in range(labels.batch_size):
        for i in range(frame.q_len):
            for j in range(frame.k_len):
                if frame.locate(b, i, j) is None:
                    continue
                found = part.at(b, i, j)
                pairs += 1
                hidden += not found
                for entry in found:
                    unlabeled += not entry
                    for label in entry:
                        numbers[label] += 1
    told = labels.describe()
    got = list(told.numbers or ()), told.unlabeled, told.not_attending, told.pairs
    sums = isinstance(part, Edges) and not is_one_matrix(part)  # how an added -1 counts is left open
    if sums:
        got, (unlabeled, hidden, pairs) = (got[0], 0, 0, 0), (0, 0, 0)
    if got != (numbers, unlabeled, hidden, pairs):
        raise FuzzError(f"{what}: describe tells {got}, must be {(numbers, unlabeled, hidden, pairs)}")


def check_rows(seed: int) -> None:
    """Some query rows alone, with ``labels.rows``, give what they give among all."""
    rng, case = Random(f"rows {seed}"), draw(seed)
    frame = case.frame
    raw = isinstance(case.labels, Written) and case.labels.raw
    if raw or case.keep is not None or case.labels is None or "attr" in case.leaves:  # rows leave edges out
        return
    start = rng.randint(0, frame.q_len)
    stop = rng.randint(start, frame.q_len)
    labels = case.labels.build().rows(start, stop)
    truth = solve(case, F64)
    for impl in (None, "reference", "chunked"):
        if impl == "chunked" and has_parallel(case.labels):
            continue
        got = _some_rows(case, labels, start, stop, impl)
        for name, found in got.items():
            value, bound = (x[name][:, :, start:stop] for x in (truth.values, truth.bounds))
            far = (found - value).abs() > bound
            if bool((torch.where(value.isfinite(), far, found != value)).any()):
                raise FuzzError(
                    f"seed {seed}: rows({start}, {stop}) by impl={impl!r} give other {name}\n{case.describe()}"
                )


def _some_rows(case: Case, labels: rg.Labels, start: int, stop: int, impl: str | None) -> dict[Any, Tensor]:
    frame = case.frame
    offset: Any = offset_given(frame, "each")
    if frame.packed:
        offset = offset + (start - torch.tensor(frame.q_starts[:-1], dtype=torch.int64)).clamp(min=0)
    else:
        offset = offset + start
    mask = case.bool_mask if case.bool_mask is not None else case.leaves.get("mask")
    if mask is not None:
        mask = mask[:, :, start:stop] if mask.shape[2] > 1 else mask
        mask = mask[0] if frame.packed else mask
    inputs = [case.leaves["query"][:, :, start:stop], case.leaves["key"], case.leaves["value"]]
    inputs = [x[0].transpose(0, 1) for x in inputs] if frame.packed else inputs
    made = [tuple(case.leaves.get((kind, part)) for part in range(len(case.num_labels))) for kind in KINDS]
    single = not isinstance(labels, rg.SumLabels)
    tables = [(t[0] if single else t) if any(x is not None for x in t) else None for t in made]

    def place(rows: Tensor) -> Tensor:
        rows = rows[:, :, start:stop]
        return rows[0].transpose(0, 1) if frame.packed else rows

    z, aux = rg.relation_attention_with_aux(
        *inputs, labels, *tables, attn_mask=mask, is_causal=case.is_causal, q_offset=offset, scale=case.scale,
        enable_gqa=case.heads != case.kv_heads, need_lse=True, need_label_mass=case.need_mass, impl=impl,
        **given(case, case.leaves, place),
    )  # fmt: skip
    mass = aux.label_mass if isinstance(aux.label_mass, tuple) else (aux.label_mass,)
    found = {"z": z, "lse": aux.lse, **{("mass", part): m for part, m in enumerate(mass) if m is not None}}
    return {name: x.transpose(0, 1)[None] for name, x in found.items()} if frame.packed else found
