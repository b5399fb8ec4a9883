"""Kept figures of long runs are those of the docstring's table, of the results page and of the README, and are drawn."""

import ast
import json
import re
from datetime import date
from statistics import mean, stdev

import kept_results
import pytest
from example_runs import interval
from kept_results import KEPT, Kept
from matplotlib.figure import Figure

ROOT = KEPT.parents[1]
NAMES = sorted(path.stem for path in KEPT.glob("*.json") if path.stem != "patched_memory")  # of another form
PUBLISHED = ("quickstart", "kinship", "dependency_trees", "variable_misuse", "naming_functions", "schema_linking")
PUBLISHED += ("graph_classification", "additive_scores", "karate_club")


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def record(name):
    return json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8"))


def docstring(name):
    return ast.get_docstring(ast.parse((ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")))


def cells(text):
    """The figures of a line: means with their spreads, an empty list for a dash."""
    found = re.findall(r"–|\d+\.\d(?: %)?(?: ± \d+\.\d)?", text)
    return [[float(figure) for figure in re.findall(r"\d+\.\d", cell)] for cell in found]


def table(name):
    """By row of the docstring's table, its figures."""
    rows = re.findall(r"^    (\S.*?) {2,}((?:–|\d+\.\d).*)$", docstring(name), re.MULTILINE)
    return {row: cells(figures) for row, figures in rows}


def test_every_example_with_measured_rows_is_kept():
    examples = {path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "kept_results"}
    training = {name for name in examples if "Kept.read(" in (ROOT / "examples" / f"{name}.py").read_text("utf-8")}
    assert training == set(NAMES)
    with_tables = {name for name in examples if " ± " in (docstring(name) or "") and table(name)}
    assert with_tables == set(NAMES)


def test_kept_figures_are_those_of_the_docstring(name):
    kept, published = record(name), table(name)
    rows = {row["name"]: row for row in kept["rows"]}
    assert published.keys() <= rows.keys()
    for row, kept_row in rows.items():
        figures = [kept_row["figures"].get(column, []) for column in kept["columns"]]
        if row in published:
            found = published[row][: len(figures)]
            assert figures == found + [[]] * (len(figures) - len(found)), row
        else:  # a rule, which the text below the table speaks of
            assert kept_row["kind"] == kept_results.RULE
            assert all(f"{figure[0]:.1f} %" in docstring(name) for figure in figures if figure), row


def test_a_kept_run_says_what_the_docstring_says(name):
    kept, text = record(name), " ".join(docstring(name).split())
    for seeds in re.findall(r"three|five", kept["seeds"]):
        assert f"{seeds} seeds" in text or f"{seeds} for" in text
    assert kept["command"] in text
    assert kept["date"] in text or date.fromisoformat(f"{kept['date']}-01").strftime("%B %Y") in text
    assert "AMD EPYC" not in kept["processor"] or "AMD EPYC" in text
    assert ("half of the 95 % interval" in text) == (kept["spread"] == "half of the 95 % interval")
    for chart in (kept["results"], kept["thumbnail"]):
        assert all(number in text for number in re.findall(r"\d+\.\d+|[-+]\d+", chart["title"]))


def test_values_of_each_seed_give_the_figures(name):
    for row in record(name)["rows"]:
        for column, values in row.get("values", {}).items():
            shares = [value / 100 for value in values]
            half = 100 * (interval(shares)[1] - mean(shares))
            spread = half if "interval" in record(name)["spread"] else stdev(values)
            assert row["figures"][column] == [round(mean(values), 1), round(spread, 1)]


def spoken_of(name, text):
    """The lines of tables, and the paragraphs, that name an example."""
    parts = [part for block in text.split("\n\n") for part in (block.split("\n") if block[0] == "|" else [block])]
    return [part for part in parts if f"/gallery/{name}`" in part or f"examples/{name}.py)" in part]


def pairs(text):
    return re.findall(r"(\d+\.\d) ± (\d+\.\d)", text.replace("**", "").replace(" %", ""))


@pytest.mark.parametrize("name", PUBLISHED)
def test_other_pages_publish_the_same_figures(name):
    figures = [figure for row in record(name)["rows"] for figure in row["figures"].values() if len(figure) == 2]
    kept = {(f"{middle:.1f}", f"{spread:.1f}") for middle, spread in figures}
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    texts = [*spoken_of(name, results), *spoken_of(name, (ROOT / "README.md").read_text(encoding="utf-8"))]
    if name == "quickstart":  # it has a section of its own
        _, section = results.split("## A hidden variable")
        texts += [line for line in section.split("\n") if line.startswith("|")]
    found = [pair for text in texts for pair in pairs(text)]
    assert found
    assert [pair for pair in found if pair not in kept] == []


@pytest.fixture
def drawn(monkeypatch):
    """Figures instead of files."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, _: figures.append(figure))
    return figures


def test_the_picture_shows_the_figures(name, drawn, tmp_path, capsys):
    kept = Kept.read(name)
    kept.draw(tmp_path)
    assert "which shows the long run: " in capsys.readouterr().out
    kept.draw_thumbnail(tmp_path / "small.png")
    for figure, chart in zip(drawn, (kept.results, kept.thumbnail), strict=True):
        assert figure.get_suptitle() == chart.title
        figure.draw_without_rendering()
        box, size = figure.get_tightbbox(), figure.get_size_inches()
        assert box.x0 >= 0 <= box.y0, "nothing is cut off"
        assert box.x1 <= size[0]
        assert box.y1 <= size[1]
        for ax, panel in zip(figure.axes, chart.panels, strict=True):
            shown = [row for row in kept.rows if row.name in (panel.rows or {row.name: "" for row in kept.rows})]
            assert not panel.rows or len(shown) == len(panel.rows), "a row that there is not"
            if len(panel.columns) == 1:
                wanted = sorted(row.figures[panel.columns[0]][0] for row in shown if panel.columns[0] in row.figures)
                assert sorted(bar.get_x() + bar.get_width() for bar in ax.patches) == pytest.approx(wanted)
            else:
                lines = [list(line[0].get_ydata()) for line in ax.containers]
                assert lines == [[row.figures[column][0] for column in panel.columns] for row in shown]
    assert kept.source in drawn[0].get_supxlabel()
    assert len(kept.thumbnail.panels[0].rows or kept.rows) <= 5, "few rows are read on a card"
