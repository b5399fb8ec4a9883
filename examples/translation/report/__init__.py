"""The command ``report``: a page of tables and pictures from the logs of a sweep.

Every figure of the page is computed from the logs. What the page needs of them also goes to one file, ``results.json``,
from which the same page can be written again.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.translation.files import load_json, save_text
from examples.translation.report.bootstrap import add_bootstrap, drop_outdated
from examples.translation.report.page import write_page
from examples.translation.report.pictures import pictures_of, save_picture
from examples.translation.report.record import DATA_NAME, RESULTS, as_json, combine, condense
from examples.translation.report.results import Sweep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        help=f"folders that sweep wrote, and each {RESULTS} that report wrote; of runs of the same name the first "
        "counts",
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="the folder that prepare wrote; with it the intervals of BLEU resample its sentences (default: those of "
        f"{RESULTS}, or intervals over seeds only)",
    )
    parser.add_argument("--out", type=Path, default=Path("docs/paper.md"), help="the page (default: docs/paper.md)")
    parser.add_argument(
        "--images",
        type=Path,
        default=Path("docs/images/translation"),
        help=f"a folder for pictures and {RESULTS} (default: docs/images/translation)",
    )
    parser.add_argument("--data-name", help=f"what was translated (default: that of {RESULTS}, or {DATA_NAME!r})")
    parser.add_argument("--note", help=f"a paragraph after the settings (default: that of {RESULTS})")


def run(args: argparse.Namespace) -> None:
    """Write the page, its pictures and ``results.json``."""
    write_report(args.runs, args.out, args.images, data=args.data, data_name=args.data_name, note=args.note)
    print(f"{args.out}: the page; pictures and {RESULTS} in {args.images}")


def write_report(
    runs: Path | Sequence[Path],
    out: Path,
    image_folder: Path | None,
    *,
    data: Path | None = None,
    data_name: str | None = None,
    note: str | None = None,
) -> None:
    """Write a Markdown page about the runs of a sweep.

    Args:
        runs: folders of runs, and the ``results.json`` of earlier reports; of runs of the same name the first counts.
        out: the page.
        image_folder: where pictures and ``results.json`` go; None for a page without them.
        data: the folder of ``prepare``, for intervals of BLEU that resample sentences; None for those over seeds, or
            those of ``results.json``.
        data_name: what was translated; None for what ``results.json`` says.
        note: a paragraph after the settings; None for that of ``results.json``, if there is one.

    Raises:
        ValueError: nothing to report on, runs that do not compare, or ``data`` that they were not measured on.
    """
    paths = [runs] if isinstance(runs, Path) else list(runs)
    record = combine([_read(path) for path in paths])
    if data is not None:
        add_bootstrap(record, [path for path in paths if path.is_dir()], data)
    record["data"] = data_name or record["data"]
    record["note"] = record.get("note", "") if note is None else note
    drop_outdated(record)
    sweep, *shapes = Sweep.all_of(record)
    pictures = pictures_of(sweep) if image_folder is not None else []
    link = None if image_folder is None else Path(os.path.relpath(image_folder, out.parent)).as_posix()
    page = write_page(sweep, shapes, pictures, link)
    if image_folder is not None:
        for picture in pictures:
            save_picture(image_folder / picture.file, picture.draw(sweep))
        save_text(image_folder / RESULTS, as_json(record))
    save_text(out, page)


def _read(path: Path) -> dict[str, Any]:
    """The record of a folder of runs, or one that a report wrote."""
    if path.is_dir():
        return condense(path)
    if not path.is_file():
        raise ValueError(f"runs must be a folder of runs or a {RESULTS} that report wrote, got {path}")
    record = load_json(path)
    if not isinstance(record, dict) or not {"data", "runs", "similarity"} <= record.keys():
        raise ValueError(f"{path} must be a {RESULTS} that report wrote")
    return record
