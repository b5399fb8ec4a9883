"""Tests the example of additive scores: only GAT is static, rows have the same size, and right answers are counted."""

import pytest
import torch
from torch.nn.functional import one_hot

pytest.importorskip("torch_geometric")
import additive_scores as page
from experiments import additive_scores as example


@pytest.mark.parametrize("name", example.SCORES)
def test_only_gat_ranks_all_keys_alike_for_every_query(name):
    model, values = page.Lookup(example.SCORES[name].layer), page.make_dictionaries(torch.Generator())
    with torch.no_grad():
        _, (edges, weights) = model.attend(values, return_attention_weights=True)
    assert torch.equal(edges, model.edges)
    of_pairs = weights[: page.NAMES**2].view(page.NAMES, page.NAMES, -1)  # key, query, head
    best = of_pairs.argmax(0)
    assert (best == best[0]).all().item() == (name == "PyG GATConv")


def test_values_are_found_where_they_are():
    assert example.found(lambda values: one_hot(values)) == 1.0
    assert example.found(lambda values: one_hot((values + 1) % page.NAMES)) == 0.0
