"""The graph classification example: fair splits, a right ROC-AUC, rows that read their labels, and its command line."""

from __future__ import annotations

import json
import os
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
DATA = Path(os.environ.get("RELGRAPH_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
needs_data = pytest.mark.skipif(
    not (DATA / "tudataset-cleaned" / f"{NAME}.zip").is_file(),
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
    assert example.verdict([run for run in both if run.variant.startswith("PyG")]).startswith("no verdict")
    assert example.verdict([]).startswith("no verdict")


def test_after_ctrl_c_the_verdict_counts_seeds_that_both_rows_have():
    done = [run for run in runs([0.9, 0.8, 0.7], [0.6, 0.5, 0.1]) if (run.variant, run.seed) != ("PyG a", 2)]
    assert "+30.0 ROC-AUC (+30.0, +30.0 by seed)" in example.verdict(done)
    fewer = [run for run in done if (run.variant, run.seed) != ("PyG a", 1)]
    assert example.verdict(fewer).startswith("no verdict")


def test_report_shows_mean_and_spread():
    assert example.report(runs([0.5, 0.6, 0.7], [0.8] * 3)).count("60.0 ± 10.0") == 2


def test_missing_data_is_said(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        example.main(["--data", str(tmp_path)])
    assert "--data must name a folder with tudataset-cleaned/Mutagenicity.zip" in capsys.readouterr().err


def check_results(folder, rows):
    results = json.loads((folder / "results.json").read_text())
    assert [run["variant"] for run in results["runs"]] == rows
    assert all(0 <= run[name] <= 1 for run in results["runs"] for name in ("auc", "accuracy", "validation_auc"))
    return results


@needs_data
def test_command_line_trains_all_rows_on_real_molecules(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(example, "QUICK_GRAPHS", 60)
    rows = list(example.make_rows(BONDS))
    command = ["--quick", "--data", str(DATA), "--epochs", "1", "--rows", *rows, "--out", str(tmp_path)]
    assert example.main(command) == 0
    results = check_results(tmp_path, rows)
    assert (results["graphs"], results["dataset"]) == (60, NAME)
    printed = capsys.readouterr().out
    assert "made up" not in printed
    assert all(name in printed for name in rows)


@pytest.fixture
def short(tmp_path, monkeypatch):
    monkeypatch.setattr(example, "QUICK_GRAPHS", 40)
    monkeypatch.setenv("RELGRAPH_DATA", str(tmp_path / "none"))
    return ["--quick", "--epochs", "1", "--out", str(tmp_path)]


ROWS = [name for name in example.make_rows(BONDS) if "walks" not in name]


def test_short_mode_makes_up_its_molecules_and_draws(short, tmp_path, capsys):
    assert example.main(short) == 0
    results = check_results(tmp_path, ROWS)
    assert (results["graphs"], results["dataset"]) == (40, "made up")
    printed = capsys.readouterr().out
    assert printed.startswith("the molecules are made up")
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert pictures == {"results.png", "bonds.png", "labels.png", "mass.png"}
    assert all(f"picture: {tmp_path / name}" in printed for name in pictures)


def test_a_stopped_command_goes_on_where_it_was(short, tmp_path, capsys, monkeypatch):
    train, started = example.train, []

    def stopped(name, *rest):
        started.append(name)
        if len(started) == 2:
            raise KeyboardInterrupt
        return train(name, *rest)

    monkeypatch.setattr(example, "train", stopped)
    command = [*short, "--rows", *ROWS[:3]]
    assert example.main(command) == 130
    printed = capsys.readouterr().out
    assert "stopped: 1 of 3 runs are kept" in printed
    assert ROWS[0] in printed[printed.index("stopped") :]
    assert example.main(command) == 0
    assert started == [ROWS[0], ROWS[1], ROWS[1], ROWS[2]]
    with pytest.raises(SystemExit, match="begin anew by --fresh"):
        example.main([*command, "--epochs", "2"])


def test_weights_along_bonds_are_rows_of_shares():
    row = example.make_rows(BONDS)["relgraph bonds"]
    torch.manual_seed(0)
    graph = row.prepare(molecules()[2])
    weights = example.along_bonds(example.Classifier(row, ATOMS).eval(), graph)
    assert weights.shape == (example.HEADS, 7, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(example.HEADS, 7))
    bonded = torch.zeros(7, 7, dtype=torch.bool)
    bonded[graph.edge_index[1], graph.edge_index[0]] = True
    assert torch.equal(weights > 0, bonded.expand(example.HEADS, 7, 7))


def test_label_mass_sums_to_one_where_every_pair_has_a_label():
    row = example.make_rows(BONDS)["relgraph bonds | paths"]
    torch.manual_seed(0)
    model = example.Classifier(row, ATOMS).eval()
    mass = example.label_mass(model, [row.prepare(graph) for graph in molecules()])
    assert mass.shape == (example.LAYERS, example.HEADS, model.labels.labeler.num_labels)
    torch.testing.assert_close(mass.sum(-1), torch.ones(example.LAYERS, example.HEADS))
