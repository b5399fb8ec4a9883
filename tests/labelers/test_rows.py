"""Tables of code that counts i - j, in the order of labels that count j - i."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from relgraph.labelers import BucketedDistance, ClippedDistance, Grid, GridColumns, GridRows, Window
from relgraph.labelers.base import two_clips

FLIPPED = (ClippedDistance(3), ClippedDistance((4, 1)), ClippedDistance((0, 2)), ClippedDistance(0))


def attention(labeler, q_len, table, **options):
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 1, 2, q_len, 4, dtype=torch.float64)
    return rg.relation_attention(q, k, v, labeler(q_len), table, **options), (q, k, v)


@pytest.mark.parametrize("labeler", FLIPPED, ids=repr)
def test_a_flipped_table_gives_the_scores_of_the_other_code(labeler):
    torch.manual_seed(0)
    theirs = torch.randn(labeler.num_labels, 4, dtype=torch.float64)
    got, (q, k, v) = attention(labeler, 9, labeler.rows_from(theirs))
    at = torch.arange(9)
    left, right = two_clips(labeler.clip)
    picked = theirs[(at[:, None] - at).clamp(-right, left) + right]  # [N, N, D] by i - j
    scores = (q @ k.mT + torch.einsum("bhid,ijd->bhij", q, picked)) / 2
    torch.testing.assert_close(got, scores.softmax(-1) @ v)


@pytest.mark.parametrize(
    "labeler", [*FLIPPED, Grid((2, 1)), Grid(1, extra_tokens=1), GridRows(2), GridColumns(1)], ids=repr
)
def test_key_query_is_the_identity_and_twice_leads_back(labeler):
    table = torch.randn(labeler.num_labels, 3)
    assert labeler.rows_from(table, "key-query") is table
    there = labeler.rows_from(table, "query-key")
    assert torch.equal(labeler.rows_from(there), table)
    assert labeler.num_labels == 1 or not torch.equal(there, table)


def test_buckets_are_mirrored_where_each_side_has_as_many():
    labeler = BucketedDistance(8, 20)
    table = torch.arange(8.0)
    assert labeler.rows_from(table).tolist() == [0, 5, 6, 7, 4, 1, 2, 3]
    assert labeler.rows_from(table, "key-query") is table
    ids = labeler(30).to_dense()[0][0]
    assert torch.equal(labeler.rows_from(table)[ids], table[ids.T])


def test_a_rule_that_counts_the_other_way_keeps_its_table():
    labeler = BucketedDistance(rule="deberta")
    table = torch.randn(labeler.num_labels, 2)
    assert labeler.rows_from(table) is table
    assert labeler.rows_from(table, "query-key") is table


@pytest.mark.parametrize("extra", [0, 1])
def test_a_swin_or_beit_table(extra):
    """Their index counts i - j in rows and columns from 0; BEiT's last three rows are the class token's."""
    height, width = 3, 4
    cells = torch.tensor([[r, c] for r in range(height) for c in range(width)])
    steps = cells[:, None] - cells + torch.tensor([height - 1, width - 1])
    index = steps[..., 0] * (2 * width - 1) + steps[..., 1]
    count = (2 * height - 1) * (2 * width - 1)
    if extra:
        whole = torch.full((height * width + 1,) * 2, count)
        whole[1:, 0] = count + 1
        whole[0, 0] = count + 2
        whole[1:, 1:] = index
        index, count = whole, count + 3
    labeler = Grid((height - 1, width - 1), extra_tokens=extra, beyond="error")
    assert labeler.num_labels == count
    table = torch.randn(count, 2)
    assert torch.equal(labeler.rows_from(table)[labeler(height, width).to_dense()[0][0]], table[index])


def test_one_of_your_own_is_mirrored_by_its_lookup():
    class Sides(rg.labelers.DistanceLabeler):
        lookup = (1, 0, 2)
        reach = 1
        num_labels = 3
        names = ("here", "before", "after")

    assert Sides().rows_from(torch.tensor([0.0, 1.0, 2.0])).tolist() == [0, 2, 1]
    assert Window(2).rows_from(torch.zeros(0, 4)).shape == (0, 4)


def test_what_has_no_mirrored_rows_is_refused():
    why = "as no table in the other order has one row for each of its labels"
    with pytest.raises(
        ValueError, match=rf"order must be 'key-query' for .*bidirectional=False\), {why}, got 'query-key'"
    ):
        BucketedDistance(bidirectional=False).rows_from(torch.zeros(32))
    with pytest.raises(ValueError, match=rf"order must be 'query-key' for .*rule='deberta'\), {why}, got 'key-query'"):
        BucketedDistance(rule="deberta").rows_from(torch.zeros(512, 2), "key-query")


def test_refuses_bad_tables():
    labeler = ClippedDistance(16)
    with pytest.raises(
        ValueError,
        match=r"table must have 33 rows in dimension 0, one per label of ClippedDistance\(16\), got shape \[32, 64\]",
    ):
        labeler.rows_from(torch.zeros(32, 64))
    with pytest.raises(ValueError, match=r"table must have 33 rows in dimension 1, .* got shape \[33, 64\]"):
        labeler.rows_from(torch.zeros(33, 64), dim=1)
    with pytest.raises(
        ValueError,
        match=r"table must have 12 rows in dimension 0, one per label of Grid\(1, extra_tokens=1\), got shape \[9\]",
    ):
        Grid(1, extra_tokens=1).rows_from(torch.zeros(9))
    with pytest.raises(ValueError, match="dim must be at most 1, got 2"):
        labeler.rows_from(torch.zeros(33, 64), dim=2)
