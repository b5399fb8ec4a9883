"""iRPE's labels of an image."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relgraph.labelers import BucketedGrid

from .conformance import Case, LabelerSuite

RULES = ("product", "euclidean", "quant", "cross-rows", "cross-columns")


class TestConformance(LabelerSuite):
    cases = (
        *(Case(BucketedGrid(rule), (4, 3)) for rule in RULES),
        Case(BucketedGrid("product", extra_tokens=1), (2, 2)),
        Case(BucketedGrid("euclidean", extra_tokens=2), (0, 3)),
        Case(BucketedGrid("quant", alpha=1, beta=4, gamma=90), (9, 9)),
        Case(BucketedGrid("cross-rows") + BucketedGrid("cross-columns"), (3, 4)),
    )


def bucket(distance, alpha, beta, gamma):
    """Compute iRPE's piecewise index of one distance in float32."""
    if abs(distance) <= alpha:
        return int(distance)
    ratio = torch.log(torch.tensor(abs(distance), dtype=torch.float32) / alpha) / math.log(gamma / alpha)
    far = int((alpha + ratio * (beta - alpha)).round().clamp(max=beta))
    return far if distance > 0 else -far


@functools.cache
def row_of(rule, rows, columns, coefficients):
    """Return the row of the released tables for offsets query minus key."""
    last = int(coefficients[1])
    if rule == "product":
        return (bucket(rows, *coefficients) + last) * (2 * last + 1) + bucket(columns, *coefficients) + last
    square = rows**2 + columns**2
    read = {"euclidean": round(math.sqrt(square)), "quant": square, "cross-rows": rows, "cross-columns": columns}
    return bucket(read[rule], *coefficients) + last


@given(
    st.sampled_from(RULES),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from([1.9, 1.0, 0.7, 3.0]),
    st.integers(0, 2),
)
def test_against_a_loop(rule, height, width, ratio, extra):
    coefficients = (ratio, 2 * ratio, 8 * ratio)
    labeler = BucketedGrid(rule, alpha=ratio, beta=2 * ratio, gamma=8 * ratio, extra_tokens=extra)
    ids = labeler(height, width).to_dense()[0][0]
    cells = [(row, column) for row in range(height) for column in range(width)]
    wanted = [[row_of(rule, r - s, c - d, coefficients) for s, d in cells] for r, c in cells]
    assert ids[extra:, extra:].tolist() == wanted
    assert bool((ids[:extra] == labeler.num_labels - 1).all())
    assert bool((ids[:, :extra] == labeler.num_labels - 1).all())


def test_the_published_setting():
    assert BucketedGrid().num_labels == 49
    assert BucketedGrid(extra_tokens=1).num_labels == 50
    assert BucketedGrid("cross-rows", extra_tokens=1).num_labels == 8
    assert BucketedGrid("euclidean").names == (
        "unused 0",
        "unused 1",
        "unused 2",
        "distance 0",
        "distance 1",
        "distance 2..3",
        "distance >=4",
    )
    assert repr(BucketedGrid()) == "BucketedGrid()"


def test_refuses_bad_settings():
    with pytest.raises(ValueError, match="gamma must be more than alpha = 1.9, got 1.0"):
        BucketedGrid(gamma=1)
    with pytest.raises(ValueError, match="beta must make at most 1,048,576 labels, got 4004001"):
        BucketedGrid(beta=1000)
