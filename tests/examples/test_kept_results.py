"""Kept figures of long runs are those of the page's table, of the results page and of the README, and are drawn."""

import ast
import json
import re
from statistics import mean, stdev

import kept_results
import pytest
from example_runs import interval
from kept_results import KEPT, Kept
from matplotlib.figure import Figure

ROOT = KEPT.parents[1]
NAMES = sorted(path.stem for path in KEPT.glob("*.json"))
PUBLISHED = ("quickstart", "kinship", "dependency_trees", "variable_misuse", "naming_functions", "schema_linking")
PUBLISHED += ("graph_classification", "additive_scores", "karate_club", "pretrained_relations")

RACES = ("LightGBM, forty features", "LightGBM, forty features, frozen", "HGTConv", "ours, no labels", "ours")


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def record(name):
    return json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8"))


def text(name):
    """The docstring of a page, and its blocks of text."""
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    blocks = re.findall(r"^# ?(.*)$", source, re.MULTILINE)
    return "\n".join([ast.get_docstring(ast.parse(source)) or "", *blocks])


def cells(text):
    """The figures of a line: means with their spreads, an empty list for a dash."""
    found = re.findall(r"–|\d+\.\d+(?: %)?(?: ± \d+\.\d)?", text)
    return [[float(figure) for figure in re.findall(r"\d+\.\d+", cell)] for cell in found]


def table(name):
    """By row of the page's table, its figures."""
    rows = re.findall(r"^    (\S.*?) {2,}((?:–|\d+\.\d).*)$", text(name), re.MULTILINE)
    return {row: cells(figures) for row, figures in rows}


def test_every_example_with_measured_rows_is_kept():
    examples = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert {name for name in examples if table(name)} == set(NAMES)


def test_kept_figures_are_those_of_the_text(name):
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
            assert all(f"{figure[0]:.1f} %" in text(name) for figure in figures if figure), row


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


@pytest.mark.parametrize("name", ["kinship", "relational_tables"])
def test_the_picture_shows_the_figures(name, monkeypatch, tmp_path, capsys):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, _: drawn.append(figure))
    kept = Kept.read(name)
    kept.draw(tmp_path)
    assert f"which shows the {kept.source}" in capsys.readouterr().out
    for ax, panel in zip(drawn[0].axes, kept.results.panels, strict=True):
        shown = [row for row in kept.rows if not panel.rows or row.name in panel.rows]
        wanted = sorted(row.figures[panel.column][0] for row in shown if panel.column in row.figures)
        assert sorted(bar.get_x() + bar.get_width() for bar in ax.patches) == pytest.approx(wanted)
        assert ax.yaxis.get_tick_params()["labelleft"], "each panel has other rows"


def test_titles_and_captions_fit_the_pictures(name, monkeypatch, tmp_path):
    drawn, save = [], Figure.savefig  # saving places the texts
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: drawn.append(figure) or save(figure, path))
    kept = Kept.read(name)
    kept.draw(tmp_path)
    kept.draw_thumbnail(tmp_path / "thumbnail.png")
    for figure in drawn:
        assert len(figure.texts) == 2
        for text in figure.texts:
            box = text.get_window_extent()
            assert min(box.min) >= 0 and (box.max <= figure.bbox.max).all(), text


@pytest.mark.parametrize(
    ("begin", "file", "variants"),
    [
        ("| AqSol", "aqsol", ("PyG TransformerConv", "relgraph, no labels", "relgraph")),
        ("| RelBench's rel-f1", "rel-f1", ("ours, no labels", "HGTConv", "ours")),
    ],
)
def test_the_readme_has_the_kept_figures_of_public_benchmarks(begin, file, variants):
    kept = json.loads((KEPT / "partial" / f"{file}.json").read_text(encoding="utf-8"))
    runs, score = (kept["runs"], "test") if file == "aqsol" else (kept["dnf"]["runs"], "score")
    lines = (ROOT / "README.md").read_text(encoding="utf-8").replace("**", "").splitlines()
    (row,) = [line for line in lines if line.startswith(begin)]
    values = [[run[score] for run in runs if run["variant"] == variant] for variant in variants]
    assert re.findall(r"\d\.\d+ ± \d\.\d+", row) == [f"{mean(x):.3f} ± {stdev(x):.3f}" for x in values]


def test_the_results_page_has_the_kept_figures_of_molecules():
    runs = json.loads((KEPT / "partial" / "aqsol.json").read_text(encoding="utf-8"))["runs"]
    section = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").split("solubility of molecules")[1]
    found = re.findall(r"^\| (?:relgraph|PyG).*\| (\d\.\d+ ± \d\.\d+) \|$", section.replace("**", ""), re.MULTILINE)
    values = [[run["test"] for run in runs if run["variant"] == name] for name in {run["variant"] for run in runs}]
    assert sorted(found) == sorted(f"{mean(x):.3f} ± {stdev(x):.3f}" for x in values)


def test_the_results_page_has_the_kept_figures_of_races():
    kept = json.loads((KEPT / "partial" / "rel-f1.json").read_text(encoding="utf-8"))
    section = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").split("## A public benchmark")[1]
    rows = [line[2:-2].split(" | ")[1:] for line in section.split("\n") if line.count(" ± ") == 3]
    for (task, record), found in zip(kept.items(), zip(*rows, strict=True), strict=True):
        values = [[run["score"] for run in record["runs"] if run["variant"] == name] for name in RACES]
        digits = 2 if task == "position" else 3
        assert list(found) == [f"{mean(x):.{digits}f} ± {stdev(x):.{digits}f}" for x in values]


def test_the_readme_has_the_figures_of_the_translations():
    found = json.loads((ROOT / "docs" / "images" / "translation" / "results.json").read_text(encoding="utf-8"))
    runs = found["runs"]
    lines = (ROOT / "README.md").read_text(encoding="utf-8").replace("**", "").splitlines()
    for part, score, what in (("test", "bleu", "| [English to German]"), ("test-18-24", "perplexity", "| on longer")):
        (row,) = [line for line in lines if line.startswith(what)]
        values = [
            [run["tests"][part][score] for run in runs if run["name"].startswith(f"{name}-seed")]
            for name in ("sinusoidal", "rotary", "relative-16")
        ]
        assert re.findall(r"\d+\.\d ± \d\.\d", row) == [f"{mean(x):.1f} ± {stdev(x):.1f}" for x in values]
        low, high = interval([one - other for _, other, one in zip(*values, strict=True)])
        undecided = f"against rotary undecided, −{-low:.1f} to +{high:.1f}"
        assert (undecided in row) == (low < 0 < high)
    claim = {"one": "relative, k = 16", "other": "sinusoidal", "test": "test"}
    (lead,) = [one for one in found["bootstrap"] if claim.items() <= one.items()]
    assert any(f"ahead of sinusoids by {lead['low']:.1f} to {lead['high']:.1f}" in line for line in lines)


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (r"before, (583) MiB", r"T5-small encoder \| 2,048 .* 1,616 / (\d+)"),
        (r"(1,616) MiB before", r"T5-small encoder \| 2,048 .* ([\d,]+) / 583"),
        (r"in (\S+) times the time", r"T5-small encoder \| 2,048 .* 9,732 / 5,227 \| (\S+)"),
        (r"attention, 32 × 128 tokens, distances .* (\S+)× \(", r"attention, 32 × 128 tokens, distances .* (\S+)× \("),
        (r"attention, 2,048 tokens, distances .* (\S+)×", r"attention\S+, 2,048 tokens, distances as labels .* (\S+)×"),
        (r"attention, 2,048 tokens, 32 arbitrary labels .* (\S+)×", r"float32, n=2048 b1 \| 32 arb.* \| (\S+) \(.* \|.*\|$"),
        (r"DeBERTa-v3-base layer, 512 tokens, patched .* (\S+)×", r"DeBERTa-v3-base layer \| 512 .* / 378 \| (\S+)"),
        (r"the same, 2,048 tokens \| the same \| (\S+)×", r"a layer of DeBERTa-v3-base, patched, 2,048 tokens .* (\S+)×"),
        (r"graph layer, 40 edges, .* (\S+)×", r"^\| 20 \| 40 \| (\S+)"),
        (r"graph layer, 200,000 edges of 20 types .* (\S+)× \(", r"a graph layer\S+, 200,000 edges of 20 types .* (\S+)×"),
        (r"PyG compiled: (\S+)×", r"compiled by `torch.compile` \| (\S+)"),
        (r"Single short calls cost more: (\S+)× at 16 tokens", r"`relation_attention`, 16 tokens, .* (\S\.\S)\S \(\S+\) \|$"),
        (r"16 tokens, (\S+)× at 128", r"^\| 128 tokens, distances .* (\S\.\S)\S \(\S+\) \|$"),
    ],
)  # fmt: skip
def test_the_readme_has_the_figures_of_the_benchmarks(here, there):
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/benchmarks.md")]
    (readme,), (page, *_) = (
        re.findall(what, text, re.MULTILINE) for what, text in zip((here, there), texts, strict=True)
    )
    assert readme == page
