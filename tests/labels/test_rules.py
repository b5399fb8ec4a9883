"""What becomes of a single pair."""

from __future__ import annotations

import pytest
import torch

from relgraph.labels.rules import PriorityRule, ProductRule, RestrictionRule
from tests.labelers.zoo import one

RULES = (ProductRule(2, 3), PriorityRule(2, 3), RestrictionRule(2, 3))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_ints_and_tensors_follow_the_definition(rule):
    for a in range(-2, 2):
        for b in range(-2, 3):
            expected = one(rule.name, a, b, 2, 3)
            assert rule.code(a, b) == expected
            assert rule.codes(torch.tensor([a]), torch.tensor([b])).tolist() == [expected]
            assert -2 <= expected < rule.num_labels


def test_num_labels():
    assert [rule.num_labels for rule in RULES] == [6, 5, 2]
