"""What labels answer by themselves, held to their description: ``to_dense``, ``describe``, and slices of them."""

from __future__ import annotations

from random import Random

import torch

import relgraph as rg
from tests.fuzz.cases import draw
from tests.fuzz.compare import FuzzError
from tests.fuzz.frame import Frame
from tests.fuzz.labels import Edges, Single, is_one_matrix, parts_of

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
    except (ValueError, TypeError):
        return
    raise FuzzError(f"{what}: parallel edges that each count, or several labels, have a dense form")


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
