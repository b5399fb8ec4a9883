"""Distances in buckets, by the rules of T5 and DeBERTa."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relgraph.labelers import BucketedDistance

from .conformance import Case, LabelerSuite

PACKED = {"ptr": torch.tensor([0, 4, 4, 9])}


class TestConformance(LabelerSuite):
    cases = (
        Case(BucketedDistance(), (40,)),
        Case(BucketedDistance(8, 20), (0,)),
        Case(BucketedDistance(7, max_distance=9), (30,)),
        Case(BucketedDistance(8, 20, bidirectional=False), (25,)),
        Case(BucketedDistance(32, 20, False), (9,), PACKED),
        Case(BucketedDistance(rule="deberta"), (40,)),
        Case(BucketedDistance(8, 20, rule="deberta"), (30, 25), {"q_offset": 2}),
        Case(BucketedDistance(4, 3, rule="deberta"), (9,), PACKED),
    )


def published_bucket(relative_position, bidirectional, num_buckets, max_distance):
    """Compute T5's formula as published, on float32 tensors."""
    bucket = torch.zeros_like(relative_position)
    if bidirectional:
        num_buckets = num_buckets // 2
        bucket = bucket + num_buckets * (relative_position > 0)
        n = relative_position.abs()
    else:
        n = torch.maximum(-relative_position, torch.zeros_like(relative_position))
    max_exact = num_buckets // 2
    ratio = torch.log(n.to(torch.float32).clamp(min=1) / max_exact) / math.log(max_distance / max_exact)
    large = max_exact + (ratio * (num_buckets - max_exact)).to(torch.int64)
    large = torch.minimum(large, torch.tensor(num_buckets - 1))
    return bucket + torch.where(n < max_exact, n, large)


def ids_by_distance(labeler, reach):
    """Return the id of each distance j - i from -reach to reach."""
    return labeler(1, 2 * reach + 1, q_offset=reach).to_dense()[0][0, 0]


class TestBucketed:
    @given(st.integers(4, 80), st.integers(0, 400), st.booleans())
    def test_agrees_everywhere(self, num_buckets, more, bidirectional):
        max_distance = num_buckets // (4 if bidirectional else 2) + 1 + more
        labeler = BucketedDistance(num_buckets, max_distance, bidirectional)
        reach = 2 * max_distance
        expected = published_bucket(torch.arange(-reach, reach + 1), bidirectional, num_buckets, max_distance)
        torch.testing.assert_close(ids_by_distance(labeler, reach), expected)

    @pytest.mark.parametrize("bidirectional", [True, False])
    def test_names_say_what_falls_in(self, bidirectional):
        labeler = BucketedDistance(32, 128, bidirectional)
        ids = ids_by_distance(labeler, 300).tolist()
        for bucket, name in enumerate(labeler.names):
            inside = [at - 300 for at, id_ in enumerate(ids) if id_ == bucket]
            if name.startswith("unused"):
                assert inside == []
            elif name.startswith("<="):
                assert inside == list(range(-300, int(name[2:]) + 1))
            elif name.startswith(">="):
                assert inside == list(range(int(name[2:]), 301))
            else:
                low, high = (name.split("..") * 2)[:2]
                assert inside == list(range(int(low), int(high) + 1))


def deberta_bucket(distance, half, longest):
    """Compute DeBERTa's row for one distance i - j, each step in float32."""
    middle = half // 2
    bucket = distance
    if abs(distance) > middle:
        ratio = torch.log(torch.tensor(abs(distance) / middle, dtype=torch.float32))
        ratio = ratio / torch.log(torch.tensor((longest - 1) / middle, dtype=torch.float32))
        bucket = int(torch.ceil(ratio * (middle - 1))) + middle
        bucket = bucket if distance > 0 else -bucket
    return min(max(bucket + half, 0), 2 * half - 1)


class TestDeberta:
    def test_first_distances_of_the_published_setting(self):
        """These are the borders of transformers 4.56 and 5.23 for i - j > 0; the other side mirrors them."""
        borders = [129, 130, 131, 133, 134, 136, 137, 139, 140, 142, 143, 145, 146, 148, 150, 151]
        last = [484, 490, 495, 500, 506]
        ids = ids_by_distance(BucketedDistance(rule="deberta"), 1536).flip(0)[1536:].tolist()  # i - j = 0, 1, ...
        first = [at for at in range(1, 1537) if ids[at] != ids[at - 1]]
        assert first[:128] == list(range(1, 129))
        assert first[128:144] == borders
        assert first[-5:] == last
        assert len(first) == 255
        assert ids[128] == 384
        assert ids[-1] == 511

    @given(st.integers(1, 40), st.integers(2, 100))
    def test_agrees_everywhere(self, quarter, more):
        half, longest = 2 * quarter, quarter + more
        labeler = BucketedDistance(2 * half, longest, rule="deberta")
        reach = 3 * longest
        wanted = [deberta_bucket(-distance, half, longest) for distance in range(-reach, reach + 1)]
        assert ids_by_distance(labeler, reach).tolist() == wanted

    def test_defaults_are_those_of_the_released_models(self):
        labeler = BucketedDistance(rule="deberta")
        assert (labeler.num_labels, labeler.max_distance) == (512, 512)
        assert labeler.names[256] == "0"
        assert labeler.names[257] == "-1"
        assert labeler.names[0] == ">=512"
        assert repr(labeler) == "BucketedDistance(rule='deberta')"

    def test_refuses_bad_settings(self):
        with pytest.raises(ValueError, match="num_buckets must be a multiple of 4 with rule='deberta', got 6"):
            BucketedDistance(6, rule="deberta")
        with pytest.raises(ValueError, match="bidirectional must be True with rule='deberta'"):
            BucketedDistance(rule="deberta", bidirectional=False)


@pytest.mark.parametrize("rule", ["t5", "deberta"])
def test_does_not_follow_the_default_device_or_type(rule):
    wanted = BucketedDistance(rule=rule).lookup
    with torch.device("meta"):
        assert BucketedDistance(rule=rule).lookup == wanted
    torch.set_default_dtype(torch.float64)
    try:
        assert BucketedDistance(rule=rule).lookup == wanted
    finally:
        torch.set_default_dtype(torch.float32)
