"""Runs every code block of the pages: Python in order down a page; for shell, checks that files and options exist."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from sybil import Example, Sybil
from sybil.parsers.myst import CodeBlockParser, PythonCodeBlockParser

ROOT = Path(__file__).resolve().parents[2]
NOT_OURS = {"pip", "venv", "pytest", "timeit"}


def sybil() -> Sybil:
    """Collects Markdown pages for pytest: all blocks of a page share names and run in their own folder."""
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    parsers = [PythonCodeBlockParser(doctest_optionflags=options), CodeBlockParser("sh", check_shell)]
    return Sybil(parsers, path=str(ROOT), patterns=["*.md"], setup=_begin, teardown=_end)


def _begin(names: dict[str, Any]) -> None:
    import matplotlib as mpl
    import torch

    mpl.use("Agg")
    torch.manual_seed(0)
    names["_home"], names["_folder"] = os.getcwd(), tempfile.TemporaryDirectory()
    os.chdir(names["_folder"].name)


def _end(names: dict[str, Any]) -> None:
    from matplotlib import pyplot

    pyplot.close("all")
    os.chdir(names["_home"])
    names["_folder"].cleanup()


def check_shell(example: Example) -> None:
    """A shell block parses, and the Python files and modules of this repository that it runs accept its options."""
    script = str(example.parsed)
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in commands(script):
        check_command(words)


def commands(script: str) -> Iterator[list[str]]:
    """The words of every simple command."""
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        command: list[str] = []
        for word in [*words, "&&"]:
            if word in ("&&", "|", ";"):
                if command:
                    yield command
                command = []
            else:
                command.append(word)


def check_command(words: list[str]) -> None:
    """If the command runs Python of this repository, check that the file exists and knows each option."""
    words = [word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)]
    if words and words[0] == "torchrun":
        begin = next((at for at, word in enumerate(words) if word == "-m" or word.endswith(".py")), None)
        assert begin is not None, "torchrun runs neither a module nor a file"
        if words[begin] != "-m" and "/" not in words[begin]:
            return  # a script from a page
        words = ["python", *words[begin:]]
    if not words or not re.search(r"(^|/)python3?$", words[0]):
        return
    if words[1] == "-m":
        target, options = words[2], words[3:]
        if target in NOT_OURS:
            return
        path = ROOT.joinpath(*target.split("."))
        folder = path if path.is_dir() else path.with_suffix(".py")
    else:
        target, options = words[1], words[2:]
        folder = ROOT / target
    assert folder.exists(), f"there is no {target}"
    places = [folder]
    if target == "examples/run.py" and options and not options[0].startswith("-"):
        places.append(folder.with_name("experiments") / f"{options[0]}.py")
        assert places[-1].exists(), f"there is no experiment {options[0]}"
    for option in options:
        name = option.split("=")[0]
        if re.fullmatch(r"--[a-z][a-z-]*", name) and name != "--help":
            assert any(knows(place, name) for place in places), f"{target} knows no {name}"


SHARED = (ROOT / "examples" / "example_options.py", ROOT / "docs" / "benchmarks" / "about.py")
"""Files whose options every command that imports them has."""


@cache
def knows(place: Path, option: str) -> bool:
    """Whether a source file names the option, or the field that the option comes from."""
    texts = [path.read_text(encoding="utf-8") for path in ([place] if place.is_file() else sorted(place.rglob("*.py")))]
    shared = [
        path.read_text(encoding="utf-8")
        for path in SHARED
        if any(
            re.search(rf"^from [a-z.]*\b{path.stem} import .*\b(Options|command)\b", text, re.MULTILINE)
            for text in texts
        )
    ]
    field = option.removeprefix("--").removeprefix("no-").replace("-", "_")
    # an experiment names its numbers in a dict; the meanings in the shared file are those of all numbers
    return any(
        re.search(rf"\"{option}\"|\b{field}{quote}[:=]", text)
        for quote, several in (('"?', texts), ("", shared))
        for text in several
    )
