"""Changes how Sphinx reads docstrings: examples first, types in annotations only, private bases left out."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from sphinx.ext.napoleon.docstring import GoogleDocstring

import relgraph as rg

PUBLIC = {value for module in (rg, rg.labelers) for value in vars(module).values() if isinstance(value, type)}

LINK = re.compile(r"generated/([\w.]+)\.html#([\w.]+)")

FUNCTION = re.compile(r"<function ([\w.]+)>")
"""A default that is a function, in autodoc's form, which Sphinx cannot parse."""

HOOKS = {"extra_repr", "load_state_dict", "propagate", "edge_updater"}

SECTION = re.compile(r"(Args|Shapes|Attributes|Returns|Yields|Raises|Example):")

ENTRY = re.compile(r"    (\*{0,2}\w+)(?:, \*{0,2}\w+)*: ")

COMMON = {
    *("labels", "num_labels", "tables", "heads", "edge_type", "edge_attr", "edge_dim", "num_relations", "attend"),
    *("default", "duplicates", "inverse", "self_loop", "value_map", "score", "is_causal", "attn_mask", "impl"),
    *("key_table", "value_table", "key_padding_mask", "need_weights", "need_label_mass", "dropout", "norm_first"),
    *("d_model", "nhead", "num_encoder_layers", "num_decoder_layers", "dim_feedforward"),
}
"""The optional arguments that pages and examples give most often, by name or by position."""

LESS_COMMON = "Less common parameters"
"""The heading of the others where there are more than a few."""


def setup(app: Any) -> dict[str, Any]:
    """Change the behaviour of napoleon and autodoc; show sources, except for a quick look (``sphinx -t quick``)."""
    if not app.tags.has("quick"):
        app.setup_extension("sphinx.ext.viewcode")
    # napoleon reads text before a colon as a type; here it is the beginning of a sentence
    GoogleDocstring._consume_inline_attribute = _whole_attribute
    GoogleDocstring._consume_returns_section = _whole_returns
    app.connect("autodoc-process-docstring", _common_first, priority=400)  # before napoleon, at 500
    app.connect("autodoc-process-bases", _public_bases)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-signature", _plain_defaults)
    app.connect("build-finished", _mend_links)
    return {"parallel_read_safe": True}


def _mend_links(app: Any, error: Exception | None) -> None:
    """Repair links from source pages to the documentation of a name.

    viewcode knows one public module per source file, but a file may hold names of the top level and names of a module.
    """
    if error is not None:
        return
    for page in Path(app.outdir, "_modules").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(LINK.sub(_mended, text), encoding="utf-8")


def _mended(link: re.Match[str]) -> str:
    """``generated/PAGE.html#ANCHOR`` with an anchor that begins with the name of the page."""
    page, anchor = link[1], link[2]
    _, name, member = anchor.rpartition(page.rpartition(".")[2])
    return f"generated/{page}.html#{page}{member}" if name else link[0]


def _common_first(_: Any, __: str, ___: str, described: Any, ____: Any, lines: list[str]) -> None:
    """Move the example below the first paragraph, and arguments that most calls give before the others."""
    heads = [at for at, line in enumerate(lines) if SECTION.fullmatch(line)]
    parts = [lines[start:end] for start, end in zip([0, *heads], [*heads, len(lines)], strict=True)]
    examples = [part for part in parts[1:] if part[0] == "Example:"]
    summary = lines.index("") + 1 if "" in lines else len(lines)
    if not heads or summary > heads[0]:
        return
    lines[:] = [
        *lines[:summary],
        *(line for part in examples for line in part),
        *lines[summary : heads[0]],
        *(line for part in parts[1:] if part not in examples for line in _ordered(part, described)),
    ]


def _ordered(section: list[str], described: Any) -> list[str]:
    """The arguments of a section: the labeler, those without a default, common ones, all others; as written in each."""
    if section[0] != "Args:":
        return section
    given = inspect.signature(described).parameters
    starts = [at for at, line in enumerate(section) if ENTRY.match(line)]
    end = max(at for at, line in enumerate(section) if line) + 1  # an entry may hold a list, between blank lines
    entries = [section[start:stop] for start, stop in zip(starts, [*starts[1:], end], strict=True)]

    def rank(entry: list[str]) -> int:
        name = ENTRY.match(entry[0])[1]
        several = name in given and given[name].kind in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        )
        needed = name in given and given[name].default is inspect.Parameter.empty and not several
        return 0 if name == "labeler" else 1 if needed else 2 if name in COMMON else 3

    ordered = sorted(entries, key=rank)
    first = sum(rank(entry) < 3 for entry in ordered)
    if first and len(ordered) - first > 4:
        ordered.insert(first, ["", f"{LESS_COMMON}:"])
    return [section[0], *(line for entry in ordered for line in entry), ""]


def _whole_attribute(self: Any) -> tuple[str, list[str]]:
    return "", self.__class__(self._dedent(self._consume_to_end()), self._config).lines()


def _whole_returns(self: Any, preprocess_types: bool = False) -> list[tuple[str, str, list[str]]]:
    lines = self._dedent(self._consume_to_next_section())
    return [("", "", lines)] if lines else []


def _plain_defaults(_: Any, __: str, ___: str, ____: Any, _____: Any, given: str | None, returned: str | None) -> Any:
    """Write a default that is a function by name, so that Sphinx parses the signature, one argument per line."""
    return (given and FUNCTION.sub(r"\1", given)), returned


def _public_bases(_: Any, __: str, ___: Any, ____: Any, bases: list[Any]) -> None:
    """Show the class that users know, relgraph's public one or another package's, instead of a private base."""
    for at, base in enumerate(bases):
        if isinstance(base, type) and _is_ours(base) and base not in PUBLIC:
            bases[at] = next(parent for parent in base.__mro__ if parent in PUBLIC or not _is_ours(parent))


def _is_ours(base: type) -> bool:
    return base.__module__.startswith("relgraph")


def _skip(_: Any, __: str, name: str, member: Any, skip: bool, ____: Any) -> bool | None:
    """Skip named tuples' fields ("Alias for field number 0"), and members that torch and PyG add."""
    return True if type(member).__name__ == "_tuplegetter" or name in HOOKS else None
