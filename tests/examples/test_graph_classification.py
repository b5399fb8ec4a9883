"""The graph classification example: fair splits, a right ROC-AUC, rows that read their labels, and its command line."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Batch, Data

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import graph_classification as example
from graph_classification import Run

import relgraph as rg

NAME = "Mutagenicity"
needs_data = pytest.mark.skipif(
    not (example.DATA / "tudataset-cleaned" / f"{NAME}.zip").is_file(),
    reason=f"the environment's RELGRAPH_DATA must name a folder with tudataset-cleaned/{NAME}.zip",
)
BONDS, ATOMS = 3, 5


@pytest.mark.parametrize("count", [10, 63, 111])
def test_parts_are_disjoint_cover_all_graphs_and_follow_from_the_seed(count):
    parts = example.split(count, 0)
    assert sorted(number for part in parts for number in part) == list(range(count))
    assert [len(part) for part in parts] == [count - 2 * (count // 5), count // 5, count // 5]
    assert parts == example.split(count, 0)
    assert parts != example.split(count, 1)


def test_roc_auc_counts_pairs_in_order():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 6, (63,), generator=generator).float()
    truth = torch.randint(0, 2, (63,), generator=generator)
    pairs = list(product(scores[truth == 1].tolist(), scores[truth == 0].tolist()))
    expected = sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs)
    assert example.roc_auc(scores, truth) == pytest.approx(expected)
    assert example.roc_auc(truth.float(), truth) == 1.0


def molecules(seed: int = 0) -> list[Data]:
    """Chains of 1, 2 and 7 atoms with bonds both ways."""
    generator = torch.Generator().manual_seed(seed)
    graphs = []
    for count in (1, 2, 7):
        there = torch.stack([torch.arange(count - 1), torch.arange(1, count)])
        bonds = torch.nn.functional.one_hot(torch.randint(0, BONDS, (count - 1,), generator=generator), BONDS)
        atoms = torch.nn.functional.one_hot(torch.randint(0, ATOMS, (count,), generator=generator), ATOMS)
        edge_index, edge_attr = torch.cat([there, there.flip(0)], 1), torch.cat([bonds, bonds]).float()
        graphs.append(Data(x=atoms.float(), edge_index=edge_index, edge_attr=edge_attr, y=torch.tensor([count % 2])))
    return graphs


@pytest.mark.parametrize("name", example.make_rows(BONDS))
def test_a_graph_scores_in_a_batch_what_it_scores_alone(name):
    row = example.make_rows(BONDS)[name]
    torch.manual_seed(0)
    model = example.Classifier(row, ATOMS).eval()
    graphs = [row.prepare(graph) for graph in molecules()]
    scores = model(Batch.from_data_list(graphs))
    alone = torch.cat([model(Batch.from_data_list([graph])) for graph in graphs])
    assert scores.shape == (3,)
    torch.testing.assert_close(scores, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", example.make_rows(BONDS))
def test_rows_see_kinds_of_bonds_or_do_not(name):
    """Other bonds between the same atoms change the score of just the rows that are said to read them."""
    row = example.make_rows(BONDS)[name]
    torch.manual_seed(0)
    model = example.Classifier(row, ATOMS).eval()
    graph = molecules()[2]
    other = graph.clone()
    other.edge_attr = other.edge_attr.roll(1, 1)
    score, changed = (model(Batch.from_data_list([row.prepare(one)])).item() for one in (graph, other))
    assert (abs(score - changed) > 1e-6) == (name not in ("relgraph paths", "relgraph no labels"))


def test_every_pair_of_a_molecule_has_one_label():
    transform = example.make_rows(BONDS)["relgraph bonds | paths"].labels
    graph = molecules()[2]
    ids, attend = rg.pyg.relation_labels(transform(graph), transform).to_dense()
    kinds = graph.edge_attr.argmax(1)
    assert attend.all()
    assert torch.equal(ids[0, graph.edge_index[1], graph.edge_index[0]], kinds)
    hops = (torch.arange(7)[:, None] - torch.arange(7)).abs()
    assert torch.equal(ids[0][hops != 1], BONDS + hops[hops != 1])


def test_rows_have_about_as_many_parameters():
    counts = [
        sum(parameter.numel() for parameter in example.Classifier(row, ATOMS).parameters())
        for row in example.make_rows(BONDS).values()
    ]
    assert max(counts) < 1.03 * min(counts)


def runs(ours: list[float], theirs: list[float]) -> list[Run]:
    """Rows ``a`` and ``b`` of each library, of which validation prefers ``a`` and the test would prefer ``b``."""
    rows = {
        "relgraph a": (ours, 0.8),
        "relgraph b": ([0.99] * 3, 0.7),
        "PyG a": (theirs, 0.8),
        "PyG b": ([0.99] * 3, 0.7),
    }
    return [
        Run(name, seed, 10, 1, validation, auc, auc, 1.0)
        for name, (aucs, validation) in rows.items()
        for seed, auc in enumerate(aucs)
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        ([0.90, 0.91, 0.92], [0.80, 0.81, 0.82], "a lead"),
        ([0.80, 0.81, 0.82], [0.90, 0.91, 0.92], "behind"),
        ([0.80, 0.85, 0.90], [0.79, 0.84, 0.89], "a tie"),
        ([0.80, 0.85, 0.90], [0.85, 0.85, 0.81], "a tie"),
    ],
)
def test_the_verdict_compares_what_validation_chose(ours, theirs, word):
    said = example.verdict(runs(ours, theirs))
    assert said.startswith("relgraph a against PyG a:")
    assert said.endswith(f": {word}")


def test_no_verdict_from_one_seed_or_one_library():
    both = runs([0.9] * 3, [0.8] * 3)
    assert example.verdict([run for run in both if run.seed == 0]).startswith("no verdict")
    assert example.verdict([run for run in both if run.row.startswith("PyG")]).startswith("no verdict")


def test_report_shows_mean_and_spread():
    assert example.report(runs([0.5, 0.6, 0.7], [0.8] * 3)).count("60.0 ± 10.0") == 2


def test_missing_data_is_said(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        example.main(["--data", str(tmp_path)])
    assert "--data must name a folder with tudataset-cleaned/Mutagenicity.zip" in capsys.readouterr().err


@needs_data
def test_command_line_trains_all_rows(tmp_path, capsys):
    assert example.main(["--quick", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert [run["row"] for run in results["runs"]] == list(example.make_rows(BONDS))
    assert results["graphs"] == example.QUICK_GRAPHS
    assert all(0 <= run[name] <= 1 for run in results["runs"] for name in ("auc", "accuracy", "validation_auc"))
    printed = capsys.readouterr().out
    assert all(name in printed for name in example.make_rows(BONDS))
