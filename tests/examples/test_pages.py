"""Pages of the gallery fit a notebook: short, relgraph from the start, no helper in view; and each runs whole."""

import ast
import re
import runpy
from itertools import chain

import pytest
from matplotlib import pyplot

from docs.site import cards

SCRIPTS = {"with_accelerate", "with_lightning"}
"""Scripts for several processes, which are no notebooks."""

PAGES = [*chain(*cards.GROUPS.values())]
NOT_IN_VIEW = {path.stem for path in cards.EXAMPLES.glob("*.py")} | {"argparse", "experiments", "signal", "translation"}


@pytest.mark.parametrize("stem", PAGES)
def test_a_page_fits_a_notebook(stem):
    text = (cards.EXAMPLES / f"{stem}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    named, imported = set(), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else [part.name for part in node.names]
            imported.update(module.split(".")[0] for module in modules)
            if modules[0].startswith("relgraph"):
                named.update(part.asname or part.name for part in node.names)
    assert not imported & NOT_IN_VIEW
    used = [node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name) and node.id in named]
    assert min(used) <= 25


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive:UserWarning")
@pytest.mark.parametrize("stem", [stem for stem in PAGES if stem not in SCRIPTS])
def test_a_page_trains_and_draws(stem, tmp_path, monkeypatch):
    """With two steps of training, or epochs, instead of those that a page that trains names once, and few batches."""
    path = cards.EXAMPLES / f"{stem}.py"
    text, times = re.subn(r"\b((?:steps|epochs) ?:?= ?)\d+", r"\g<1>2", path.read_text(encoding="utf-8"))
    assert times == text.count(".backward()")
    text = re.sub(r"make_batches\(\d+, ", "make_batches(4, ", text)
    text = text.replace("((100, 4), (20, 4), (5, 6))", "((4, 4), (2, 4), (1, 6))")
    monkeypatch.chdir(tmp_path)
    (tmp_path / path.name).write_text(text, encoding="utf-8")
    before = set(pyplot.get_fignums())
    try:
        runpy.run_path(path.name, run_name="__main__")
        assert set(pyplot.get_fignums()) > before
    finally:
        pyplot.close("all")
