"""Tests the example on AqSol: walks are probabilities, rows have one budget, runs continue."""

import json

import numpy as np
import pytest
import run as runner
import torch
from experiments import aqsol

ATOMS = (3, 5, 1, 4)  # the molecule of one atom is not kept


@pytest.fixture
def folder(tmp_path):
    """Three files with chains of 3, 5 and 4 atoms, four times over."""
    draw = np.random.RandomState(0)
    for part in aqsol.PARTS:
        counts = np.array(ATOMS * 4)
        chains = [np.arange(n - 1) for n in counts]
        source = np.concatenate([np.concatenate([chain, chain + 1]) for chain in chains])
        target = np.concatenate([np.concatenate([chain + 1, chain]) for chain in chains])
        (tmp_path / "aqsol").mkdir(exist_ok=True)
        np.savez(
            tmp_path / "aqsol" / f"{part}.npz", num_nodes=counts, num_edges=2 * (counts - 1), src=source, dst=target,
            atom=draw.randint(0, aqsol.ATOMS, counts.sum()), bond=draw.randint(1, 5, len(source)),
            y=draw.randn(len(counts)), kept=counts > 1,
        )  # fmt: skip
    return tmp_path


def test_walks():
    """On a chain of three: from an end to the middle, and from there to either end."""
    back, along = aqsol.walks_of(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), 3)
    assert back[:, :3].tolist() == [[0, 0.5, 0], [0, 1, 0], [0, 0.5, 0]]
    assert along[:, :3].tolist() == [[1, 0, 1], [0.5, 0, 0.5], [0.5, 0, 0.5], [1, 0, 1]]


def test_rows_have_one_budget_and_read_what_they_say(folder):
    molecules = aqsol.Molecules.of(folder / "aqsol")
    assert [graph.num_nodes for graph in molecules.train[:3]] == [3, 5, 4]
    batch = aqsol.Batch.from_data_list(list(molecules.train))
    for name, row in aqsol.ROWS.items():
        torch.manual_seed(0)
        model = aqsol.Model.of(row).eval()
        assert 0.85 * aqsol.PARAMETERS < sum(x.numel() for x in model.parameters()) <= aqsol.PARAMETERS, name
        out, changed = model(batch), batch.clone()
        changed.walks, changed.edge_attr = changed.walks.flip(0), changed.edge_attr.clone()
        changed.edge_attr[:, len(aqsol.BONDS) :] = 0.5
        assert torch.equal(out, model(changed)) != row.walks, name
        if row.labels:
            relabeled = batch.clone()
            relabeled.rel = batch.rel | {"label": 3 - batch.rel["label"].clamp(max=3)}
            assert not torch.equal(out, model(relabeled)), name


def test_the_command_runs_and_continues(folder, tmp_path, monkeypatch, capsys):
    threads = torch.get_num_threads()
    monkeypatch.setattr(aqsol, "BATCH", 4)
    command = ["aqsol", "--quick", "--data", str(folder), "--out", str(tmp_path / "out")]
    assert runner.main(command) == 0
    first = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert [run["variant"] for run in first["runs"]] == ["relgraph", "PyG GPSConv"]
    assert "test MAE" in capsys.readouterr().out
    assert runner.main(command) == 0
    assert "2 of 2 runs are already in" in capsys.readouterr().out
    torch.set_num_threads(threads)
