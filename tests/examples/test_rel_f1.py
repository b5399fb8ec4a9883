"""Tests the example on rel-f1: nothing later than a freeze is known, rows differ in their body only, runs continue."""

import json
import random

import pytest
import run as runner

pytest.importorskip("pandas")
pytest.importorskip("torch_geometric")

import numpy as np
import pandas as pd
import torch
from experiments import rel_f1
from experiments.rel_f1 import CELLS, FORTY, FORTY_FROZEN, LABELER, TASKS, Batch, Known, Past, Question, new_year

DRIVERS, YEARS = 6, range(1999, 2013)


def made_up(until):
    """Tables with three races a year up to a year; whatever is drawn for a race does not depend on later ones."""
    rows = {name: [] for name in CELLS}
    rows["circuits"] = [{"circuitId": 0, "country": "UK"}]
    rows["constructors"] = [{"constructorId": team, "name": f"t{team}", "nationality": "UK"} for team in range(2)]
    for driver in range(DRIVERS):
        rows["drivers"].append({"driverId": driver, "nationality": "UK", "dob": f"19{70 + driver}-05-01"})
    for year in YEARS:
        for number, month in enumerate((3, 6, 9)) if year < until else ():
            race, date, draw = len(rows["races"]), f"{year}-{month:02d}-15", random.Random(f"{year} {month}")
            rows["races"].append({"raceId": race, "circuitId": 0, "round": number, "date": date})
            order = draw.sample(range(DRIVERS - 1), DRIVERS - 1)  # the last driver has no race
            for place, driver in enumerate(order, 1):
                key = {"raceId": race, "driverId": driver, "date": date}
                team = {"constructorId": driver % 2}
                rows["results"].append(
                    {**key, **team, "grid": place, "positionOrder": place, "points": 9 - place, "statusId": place % 3}
                )
                rows["standings"].append({**key, "points": 9 - place, "position": place, "wins": 0})
                rows["qualifying"].append({**key, **team, "position": place})
            for team in range(2):
                key = {"raceId": race, "constructorId": team, "date": date}
                rows["constructor_results"].append({**key, "points": team})
                rows["constructor_standings"].append({**key, "points": team, "position": 1, "wins": 0})
    return {name: pd.DataFrame(held) for name, held in rows.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "rel-f1" / "db").mkdir(parents=True)
    for name, frame in made_up(2010).items():
        frame.to_csv(folder / "rel-f1" / "db" / f"{name}.csv.gz", index=False)
    for task in TASKS.values():
        (folder / "rel-f1" / "tasks" / task.name).mkdir(parents=True)
        for part, years in (("train", range(1999, 2005)), ("val", range(2005, 2008)), ("test", range(2010, 2013))):
            asked = [(f"{year}-03-01", driver, (driver + year) % 2) for year in years for driver in range(DRIVERS)]
            frame = pd.DataFrame(asked, columns=["date", "driverId", task.column])
            frame.to_csv(folder / "rel-f1" / "tasks" / task.name / f"{part}.csv.gz", index=False)
    return folder


@pytest.fixture(scope="module")
def tables(folder):
    return rel_f1.read_tables(folder / "rel-f1")


@pytest.mark.parametrize("year", [1999, 2004, 2010])
def test_rows_after_the_freeze_change_nothing(tables, year):
    freeze = new_year(year)
    cut = {name: frame[frame.date <= freeze] if "date" in frame else frame for name, frame in tables.items()}
    cut = {name: frame.reset_index(drop=True) for name, frame in cut.items()}
    whole, less, seen = Known(tables), Known(cut), 0
    for driver in range(DRIVERS):
        (sample, labels), (again, same) = whole((driver, freeze)), less((driver, freeze))
        assert sample.rows == again.rows and torch.equal(labels, same) and labels.min() >= 0
        assert all(tables[table].date[row] <= freeze for table, row in sample.rows if "date" in tables[table])
        assert sample.numbers[sample.kinds == rel_f1.QUESTION].tolist() == [0.0]
        asked = Question(driver, new_year(year + 2), 1.0)
        np.testing.assert_equal(Past(tables).features(asked, freeze), Past(cut).features(asked, freeze))
        seen += len(sample.rows)
    assert seen > DRIVERS or year == 1999


def test_training_asks_as_long_after_the_freeze_as_the_test():
    questions = [Question(driver, new_year(year) + pd.Timedelta(days=60), 1.0) for driver in (0, 1) for year in (3, 9)]
    questions = [one._replace(time=one.time.replace(year=1990 + at)) for at, one in enumerate(questions)]
    found = [(freeze, one) for (_, freeze), asks in rel_f1.training_groups(questions, 4) for one in asks]
    assert sorted((one.time.year, one.time.year - freeze.year) for freeze, one in found) == [
        (1990 + at, lag) for at in range(4) for lag in range(4)
    ]
    assert all(freeze <= one.time for freeze, one in found)


def test_features_are_means_of_the_last_races(tables):
    freeze = new_year(2003)
    features = Past(tables).features(Question(2, new_year(2004), 1.0), freeze)
    known = tables["results"][(tables["results"].driverId == 2) & (tables["results"].date <= freeze)]
    last = known.sort_values("date").tail(3)
    assert len(features) == 40 and features[-1] == len(known) == 12 and features[-2] == pytest.approx(1, abs=0.01)
    assert features[2] == pytest.approx(last.grid.mean())  # qualifying comes first, a mean for each window
    assert features[7 + 8 : 7 + 12] == pytest.approx(
        [last.grid.mean(), last.positionOrder.mean(), last.points.mean(), (last.statusId == "1").mean()]
    )


@pytest.mark.parametrize("row", [rel_f1.OURS, rel_f1.UNLABELED, rel_f1.GRAPH])
def test_a_batch_gives_what_each_sample_gives(tables, row):
    torch.manual_seed(0)
    known = Known(tables)
    model = rel_f1.make_model(row, known, TASKS["position"]).eval()
    torch.nn.init.normal_(model.answer.weight)
    groups = [
        ((driver, new_year(year)), [Question(driver, new_year(2008 + at), 0.0) for at in range(driver + 1)])
        for driver, year in ((1, 2004), (5, 2004), (2, 2000))
    ]
    each = torch.cat([model(Batch.make([group], known)) for group in groups])
    assert len(each) == 11 and each.std() > 0
    torch.testing.assert_close(model(Batch.make(groups, known)), each)


def test_only_the_row_with_labels_sees_them(tables):
    torch.manual_seed(0)
    known = Known(tables)
    groups = [((1, new_year(2004)), [Question(1, new_year(2006), 0.0)])]
    batch = Batch.make(groups, known)
    ids = (batch.labels.to_dense()[0] + 1) % LABELER.num_labels
    other = Batch(
        **{**vars(batch), "labels": rel_f1.rg.BlockLabels(ids.flatten(), LABELER.num_labels, batch.labels.k_ptr)}
    )
    for row in (rel_f1.OURS, rel_f1.UNLABELED, rel_f1.GRAPH):
        model = rel_f1.make_model(row, known, TASKS["position"]).eval()
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.1)
        assert torch.equal(model(batch), model(other)) == (row != rel_f1.OURS)


@pytest.mark.parametrize("task", ["dnf", "position"])
def test_the_command_runs_and_continues(folder, tmp_path, capsys, task):
    threads = torch.get_num_threads()
    command = ["rel_f1", "--quick", "--steps", "3", "--task", task, "--data", str(folder), "--out", str(tmp_path)]
    assert runner.main([*command, "--rows", rel_f1.OURS]) == 0
    assert runner.main(command) == 0
    text = capsys.readouterr().out
    assert f"1 of {len(rel_f1.ROWS)} runs are already in" in text
    assert ("MAE" in text) == (task == "position")
    runs = json.loads((tmp_path / f"{task}-test" / "results.json").read_text(encoding="utf-8"))["runs"]
    assert [run["variant"] for run in runs] == [*rel_f1.ROWS]
    assert {len(run["answers"]) for run in runs} == {3 * DRIVERS}
    assert {FORTY, FORTY_FROZEN} <= {*rel_f1.ROWS} or "lightgbm is not installed" in text
    torch.set_num_threads(threads)
