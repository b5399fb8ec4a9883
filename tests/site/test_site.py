"""Tests the site's builder and checks: API pages list every public name; shell blocks and links are right."""

import inspect
import re
import zlib
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import relgraph as rg
from docs.site import inventories
from docs.site.blocks import check_shell, commands
from docs.site.links import broken
from tests.docstrings import exports

DOCS = Path(__file__).resolve().parents[2] / "docs"
MODULES = (
    *(
        "relgraph",
        "relgraph.functional",
        "relgraph.score",
        "relgraph.labels",
        "relgraph.labelers",
        "relgraph.nn",
        "relgraph.pyg",
        "relgraph.plot",
        "relgraph.distributed",
    ),
    *("relgraph.interop.bert", "relgraph.interop.conllu", "relgraph.interop.networkx"),
    *("relgraph.interop.pandas", "relgraph.interop.python", "relgraph.interop.transformers"),
)


def listed():
    """All names on the API pages, by module."""
    names = set()
    for page in (DOCS / "api").glob("*.rst"):
        module = None
        for line in page.read_text(encoding="utf-8").splitlines():
            if found := re.match(r"\.\. (?:currentmodule|automodule):: (\S+)", line):
                module = found[1]
            elif module and (found := re.fullmatch(r"   ([\w.]+)", line)):
                names.add(f"{module}.{found[1]}")
    return names


def public(name):
    module = import_module(name)
    shown = {n for n in exports(module) if not isinstance(getattr(module, n), ModuleType)}
    if module in (rg.functional, rg.labels, rg.labelers, rg.nn):
        return {f"{name}.{n}" for n in shown - set(exports(rg))}
    return {f"{name}.{n}" for n in shown}


def test_the_api_pages_list_every_public_name_once():
    wanted = set().union(*map(public, MODULES))
    assert listed() == wanted


def example(script):
    return SimpleNamespace(parsed=script)


def test_a_shell_block_may_name_what_there_is():
    check_shell(
        example(
            "python examples/run.py quickstart --seeds 3 --validate   # a comment\n"
            "python -m venv .venv && .venv/bin/python examples/run.py quickstart\n"
            "OMP_NUM_THREADS=1 python -m examples.translation train data run --steps 5 \\\n    --batch-tokens 10\n"
            "echo 'ein Satz' | python -m examples.translation translate runs/first\n"
            "torchrun --standalone --nproc-per-node 2 -m examples.translation train data run --steps 5\n"
            "torchrun --nproc-per-node 2 train.py\n"
            "pip install --anything x\n"
        )
    )


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("python examples/nothing.py", "there is no examples/nothing.py"),
        ("python -m examples.nothing", "there is no examples.nothing"),
        ("true && .venv/bin/python examples/run.py quickstart --nothing 3", "run.py knows no --nothing"),
        ("python examples/run.py quickstarts", "there is no experiment quickstarts"),
        ("python -m examples.translation train \\\n  --no-such-option=5", "translation knows no --no-such-option"),
        ("torchrun --nproc-per-node 2 examples/run.py quickstart --nothing", "run.py knows no --nothing"),
        ("torchrun --nproc-per-node 2", "torchrun runs neither"),
        ("for x in", "syntax error"),
    ],
)
def test_a_shell_block_may_name_nothing_else(script, fault):
    with pytest.raises(AssertionError, match=re.escape(fault)):
        check_shell(example(script))


def test_commands_are_told_apart():
    assert list(commands("a b && c | d 'e f' # g\nh \\\n i")) == [["a", "b"], ["c"], ["d", "e f"], ["h", "i"]]


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "index.html").write_text(
        '<a href="other/page.html#here"></a><a href="other/page.html#gone"></a><a href="#mine"></a><p id="mine"></p>'
        '<a href="https://example.org/x"></a><img src="missing.png"><a href="other/"></a>'
        """<pre>id=&quot;gone&quot; <b id='single'>a</b></pre><a title="x > y" href='#single'></a><a\nhref="#a&amp;b"></a>"""
    )
    (tmp_path / "other" / "page.html").write_text('<p id="here"></p><a href="../index.html#mine"></a><a href="#"></a>')
    assert broken(tmp_path) == [
        "index.html: other/page.html#gone",
        "index.html: missing.png",
        "index.html: other/",
        "index.html: #a&b",
    ]


def test_inventories_hold_the_list(tmp_path):
    mapping = inventories.written(tmp_path)
    assert set(mapping) == {"python", "torch", "pyg", "networkx", "matplotlib", "pandas", "transformers"}
    root, path = mapping["torch"]
    assert root == "https://docs.pytorch.org/docs/2.8/"
    head, _, body = Path(path).read_bytes().partition(b"zlib compressed entries follow\n")
    assert head.startswith(b"# Sphinx inventory version 2\n# Project: torch\n")
    assert "torch.nn.Module py:class 1 generated/torch.nn.Module.html#torch.nn.Module -" in zlib.decompress(
        body
    ).decode().split("\n")


def test_no_target_of_an_inventory_stands_twice():
    for _, targets in inventories.read().values():
        names = [(name, role) for name, role, _ in targets]
        assert len(names) == len(set(names))


def test_the_example_comes_first_and_common_arguments_before_rare_ones():
    pytest.importorskip("sphinx")
    from docs.site.autodoc import _common_first, _ordered

    def described(size, rare=1, *rest, tables=None, labeler=None):
        """See the lines below."""

    text = """Summary.

    More words.

    Args:
        size: a size.
        rare: an argument
            of two lines.
        *rest: others.
        tables: tables.
        labeler: a labeler.

    Raises:
        ValueError: a size.

    Example:
        >>> 1
        1
    """
    lines = [*inspect.cleandoc(text).split("\n"), ""]
    _common_first(None, "function", "described", described, None, lines)
    moved = """Summary.

    Example:
        >>> 1
        1

    More words.

    Args:
        labeler: a labeler.
        size: a size.
        tables: tables.
        rare: an argument
            of two lines.
        *rest: others.

    Raises:
        ValueError: a size.
    """
    assert lines == [*inspect.cleandoc(moved).split("\n"), ""]
    rare = [f"    rare{n}: an argument." for n in range(5)]
    section = _ordered(["Args:", *rare, "    tables: tables.", ""], lambda tables=None: None)
    assert section == ["Args:", "    tables: tables.", "", "Less common parameters:", *rare, ""]


def test_every_signature_is_one_that_sphinx_can_parse_and_break_into_lines():
    inspect = pytest.importorskip("sphinx.util.inspect")
    from docs.site.autodoc import _plain_defaults

    found = {}
    for module in map(import_module, MODULES):
        for name in exports(module):
            if callable(thing := getattr(module, name)) and not isinstance(thing, ModuleType):
                given = inspect.stringify_signature(inspect.signature(thing))
                found[name], _ = _plain_defaults(None, "", "", None, None, given, None)
                inspect.signature_from_str(found[name])  # raises a SyntaxError
    assert "= relu," in found["RelationEncoderLayer"] and "= relu," in found["RelationTransformer"]
    assert _plain_defaults(None, "", "", None, None, None, "int") == (None, "int")
