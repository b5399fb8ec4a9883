"""Tests the molecule example: fair splits, a right ROC-AUC, rows that read their labels, and made-up molecules."""

import random
from itertools import product

import pytest
import torch

pytest.importorskip("torch_geometric")
import graph_classification as page
from experiments import graph_classification as example
from experiments.graph_classification import Run
from torch_geometric.data import Batch

ROWS = example.make_rows(2)


def test_roc_auc_counts_pairs_in_order():
    scores, truth = torch.randint(0, 6, (63,)).float(), torch.randint(0, 2, (63,))
    pairs = list(product(scores[truth == 1].tolist(), scores[truth == 0].tolist()))
    expected = sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs)
    assert page.roc_auc(scores, truth) == pytest.approx(expected)
    assert page.roc_auc(truth.float(), truth) == 1.0


@pytest.mark.parametrize("name", ROWS)
def test_rows_score_a_graph_in_a_batch_as_alone_and_see_bonds_or_do_not(name):
    """Made-up molecules of both classes, which differ only in the kinds of their bonds."""
    model = example.classifier(ROWS[name], 3).eval()
    pairs = [[page.molecule(kind, random.Random(seed)) for kind in (0, 1)] for seed in range(3)]
    graphs = [ROWS[name].prepare(graph) for pair in pairs for graph in pair]
    alone = torch.cat([model(Batch.from_data_list([graph])) for graph in graphs]).flatten()
    torch.testing.assert_close(model(Batch.from_data_list(graphs)).flatten(), alone, atol=1e-5, rtol=1e-5)
    sees = (alone[::2] - alone[1::2]).abs() > 1e-6
    assert sees.tolist() == [name not in ("relgraph paths", "relgraph no labels")] * 3


def test_rows_are_compared_by_the_seeds_that_both_have():
    aucs = {"relgraph bonds": (0.9, 0.8, 0.7), "PyG TransformerConv": (0.8, 0.7), "relgraph paths": (0.5,)}
    runs = [Run(name, seed, 10, 1, 0.5, auc, auc, 1.0) for name, row in aucs.items() for seed, auc in enumerate(row)]
    assert example.comparisons(runs) == "relgraph bonds against PyG TransformerConv: +10.0 (+10.0 to +10.0)"
    assert {name for pair in example.COMPARED for name in pair} <= ROWS.keys()


def test_a_made_up_class_is_the_planted_group():
    groups = [{("O", 0), ("N", 1)}, {("O", 1), ("N", 0)}]  # an atom, and its bond: 0 single, 1 double
    for graph in example.molecules(200):
        elements, kinds = graph.x.argmax(1).tolist(), graph.edge_attr.argmax(1).tolist()
        around = [set() for _ in elements]
        for (source, target), kind in zip(graph.edge_index.T.tolist(), kinds, strict=True):
            around[target].add(("CNO"[elements[source]], kind))
        assert [sum(group <= atom for atom in around) for group in groups] == [int(graph.y == kind) for kind in (0, 1)]
