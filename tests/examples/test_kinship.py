"""The kinship example: its families answer as matrices do, a^K alone tells nobody apart, and its command line works."""

from __future__ import annotations

import json
import random
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from matplotlib.pyplot import imread

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import kinship
from kinship import Batch, Family, Kin, compose, inverse

TURN, FLIP = torch.tensor([[0, -1], [1, 0]]), torch.tensor([[1, 0], [0, -1]])
SECTIONS = list(product(range(4), (0, 1)))


def matrix(section):
    """The square's symmetry as a matrix."""
    turns, flip = section
    return torch.linalg.multi_dot([torch.eye(2).long(), *[TURN] * turns, *[FLIP] * flip, torch.eye(2).long()])


def same(a, b):
    return torch.equal(a, b)


def test_sections_are_the_symmetries_of_a_square():
    assert len({tuple(matrix(s).flatten().tolist()) for s in SECTIONS}) == kinship.CLASSES
    for a, b in product(SECTIONS, SECTIONS):
        assert same(matrix(compose(a, b)), matrix(a) @ matrix(b))
    for a in SECTIONS:
        assert compose(a, inverse(a)) == compose(inverse(a), a) == (0, 0)


def test_both_parents_and_both_spouses_agree():
    father, mother, spouse = kinship.LINKS.values()
    assert compose(father, spouse) == mother
    assert compose(mother, spouse) == father
    assert compose(father, mother) != compose(mother, father)


@pytest.mark.parametrize("links", [1, 4, 10])
def test_a_family_answers_as_the_links_on_the_way_from_ego_do(links):
    """Walk over the edges with matrices, in both directions, until everybody is reached."""
    for seed in range(5):
        family = Family.grow(links, random.Random(seed))
        count = len(family.male)
        reached, distance, front = {0: torch.eye(2).long()}, {0: 0}, [0]
        ways = [(query, key, matrix(kinship.LINKS[link])) for key, query, link in family.facts]
        ways += [(key, query, matrix(kinship.LINKS[link]).T) for key, query, link in family.facts]
        while front:
            here = front.pop()
            for start, end, step in ways:
                if start == here and end not in reached:
                    reached[end], distance[end] = reached[here] @ step, distance[here] + 1
                    front.append(end)
        assert len(family.facts) == count - 1 == 3 * links + 4
        assert [distance[person] for person in range(count)] == family.away
        assert all(same(reached[person], matrix(family.section[person])) for person in range(count))
        assert links in family.away


def test_families_are_families():
    for seed in range(20):
        family = Family.grow(6, random.Random(seed))
        known = [(query, link) for _, query, link in family.facts]
        assert len(set(known)) == len(known)
        for key, query, link in family.facts:
            wanted = {"father": True, "mother": False, "spouse": not family.male[query]}[link]
            assert family.male[key] == wanted
        wed = [person for key, query, link in family.facts if link == "spouse" for person in (key, query)]
        assert len(set(wed)) == len(wed)


def test_a_batch_holds_what_its_families_hold():
    batch = Batch.make(3, 4, random.Random(1))
    rng = random.Random(1)
    families = [Family.grow(3, rng) for _ in range(4)]
    assert batch.kin.tolist() == [turns + 4 * flip for family in families for turns, flip in family.section]
    assert batch.away.tolist() == [away for family in families for away in family.away]
    assert batch.labels.k_ptr.tolist() == [0, 14, 28, 42, 56]
    ego = kinship.LABELER.names.index("ego")
    egos = batch.labels.edge_index[0][batch.labels.ids == ego]
    assert egos.tolist() == batch.labels.k_ptr[:-1].tolist()
    assert ego not in batch.quiet.ids.tolist()


@pytest.mark.parametrize("name", kinship.VARIANTS)
def test_without_a_value_table_all_persons_are_one(name):
    """The proof of the docstring, on a model whose tables are far from zero."""
    model = Kin(kinship.VARIANTS[name]).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    scores = model(Batch.make(4, 3, random.Random(0)), 6, quiet=2)[-1]
    spread = (scores - scores[:1]).abs().max().item()
    assert (spread < 1e-9) == ("value" not in kinship.VARIANTS[name])


@pytest.fixture
def short(monkeypatch):
    """A command of two steps, with few families."""
    monkeypatch.setattr(kinship, "QUICK", kinship.Size(9, 3, 2, 1, 1))
    monkeypatch.setattr(kinship, "SECONDS_A_STEP", {kinship.QUICK: 0.01})
    return ["--quick", "--steps", "2", "--out"]


def test_command_line_trains_all_rows(tmp_path, capsys, short):
    assert kinship.main([*short, str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    sizes = {"steps", "families", "tested", "spare", "quiet"}
    assert results.keys() == {"python", "torch", "relgraph", "quick", *sizes, "runs"}
    assert [run["variant"] for run in results["runs"]] == list(kinship.VARIANTS)
    for run in results["runs"]:
        assert len(run["losses"]) == results["steps"] == 2
        assert list(run["test"]) == [str(links) for links in range(2, 11)]
        assert list(run["validation"]) == ["2", "3", "4"]
        assert all(0 <= right <= 1 for right in run["test"].values())
    printed = capsys.readouterr().out
    assert all(name in printed for name in kinship.VARIANTS)
    assert printed.startswith("4 runs, about 1 seconds")
    for name in ("results", "family", "tables", "attention"):
        assert f"picture: {tmp_path / name}.png" in printed
        assert imread(tmp_path / f"{name}.png")[..., :3].std() > 0.05


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(tmp_path, capsys, monkeypatch, short):
    train, started = kinship.train, []

    def stopped(*arguments):
        started.append(arguments[-1])
        if len(started) == 2:
            raise KeyboardInterrupt
        return train(*arguments)

    monkeypatch.setattr(kinship, "train", stopped)
    assert kinship.main([*short, str(tmp_path)]) == 130
    printed = capsys.readouterr().out
    assert "stopped: 1 of 4 runs are kept" in printed
    table = printed[printed.index("goes on from there") :]
    assert "both" in table
    assert "a^V alone" not in table
    assert kinship.main([*short, str(tmp_path)]) == 0
    both, *others = kinship.VARIANTS
    assert started == [f"{name}, seed 0" for name in (both, others[0], *others)]
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert [run["variant"] for run in runs] == list(kinship.VARIANTS)


def test_other_settings_in_the_folder_are_an_error(tmp_path, capsys, short):
    (tmp_path / "results.json").write_text('{"steps": 9, "runs": []}')
    with pytest.raises(SystemExit, match="2"):
        kinship.main([*short, str(tmp_path)])
    assert "begin anew by --fresh" in capsys.readouterr().err


def test_report_shows_mean_and_spread():
    tests = [dict.fromkeys(range(2, 11), right) for right in (0.5, 0.6, 0.7)]
    runs = [kinship.Run("both", seed, {}, test, 2.0, []) for seed, test in enumerate(tests)]
    assert kinship.report(runs).count("60.0 ± 10.0") == 8
