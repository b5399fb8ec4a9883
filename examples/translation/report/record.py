"""From the logs of a sweep to one record, ``results.json``: what a report needs, and no more."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cosine_similarity

from examples.translation.checkpoints import AVERAGE
from examples.translation.files import load_json, load_tensors
from examples.translation.report.results import (
    KINDS,
    PICTURED_DISTANCES,
    Run,
    Variant,
    relative,
    shape_of,
)
from examples.translation.sweep import PAPER

RESULTS = "results.json"
SIMILAR_LAYER = "encoder.0"
TABLE = re.compile(r"(?:.*\.)?((?:encoder|decoder)\.)layers\.(\d+)\.self_attn\.tables\.(key|value)\.rows")


def condense(folder: Path) -> dict[str, Any]:
    """What a report needs of the finished runs in a folder."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    finished = [path for path in folders if (path / "results.json").exists()]
    for path in folders:
        if path not in finished:
            print(f"unfinished: {path}", file=sys.stderr)
    if not finished:
        raise ValueError(f"{folder} must hold at least one finished run, with its results.json; found none")
    runs, similarities = [], []
    for path in finished:
        config, results = load_json(path / "config.json"), load_json(path / "results.json")
        entry: Run = {"name": path.name, "config": config, "valid": _read_curve(path / "metrics.csv")}
        entry |= {name: results[name] for name in ("averaged_steps", "search", "tests")}
        variant = Variant.of(config["model"])
        pictured = variant in map(relative, PICTURED_DISTANCES) and shape_of(entry) is None
        if pictured and (path / AVERAGE).exists():
            tables = _read_tables(path / AVERAGE, 2 * variant.distance + 1)
            entry["norms"] = {name: _rounded(rows.norm(dim=-1).mean(0)) for name, rows in tables.items()}
            if variant == relative(PAPER):
                similarities.append({kind: _similarity(tables[f"{SIMILAR_LAYER}.{kind}"]) for kind in KINDS})
        runs.append(entry)
    similarity = {
        kind: _rounded(torch.stack([each[kind] for each in similarities]).mean(0), 3) for kind in KINDS if similarities
    }
    return {"similarity": similarity, "bootstrap": [], "runs": runs}


def _read_curve(path: Path) -> list[list[float]]:
    """The validation's curve: steps and losses."""
    with path.open(encoding="utf-8", newline="") as file:
        valid = [[int(row["step"]), float(row["nll"])] for row in csv.DictReader(file) if row["split"] == "valid"]
    if not valid:
        raise ValueError(
            f"{path} must have rows of the split valid: train with a --validate-every of no more than its --steps, or "
            "remove the run"
        )
    return valid


def _read_tables(path: Path, labels: int) -> dict[str, torch.Tensor]:
    """The tables of a model, ``[H or 1, R, D]`` each, by names such as encoder.0.key."""
    saved = load_tensors(path)
    if not isinstance(saved, dict) or "model" not in saved:
        raise ValueError(f"{path} must be a model written by train or average")
    tables: dict[str, torch.Tensor] = {}
    for name, rows in saved["model"].items():
        if match := TABLE.fullmatch(name):
            if rows.shape[-2] != labels:
                raise ValueError(f"{path}: {name} must have {labels} rows, got {rows.shape[-2]}")
            tables["".join(match.group(1, 2)) + f".{match[3]}"] = rows.double().reshape(-1, *rows.shape[-2:])
    if not tables:
        raise ValueError(f"{path} must hold tables of relations, found none")
    return tables


def _similarity(rows: torch.Tensor) -> torch.Tensor:
    """The cosine of every two rows, ``[R, R]``, the mean over heads."""
    return cosine_similarity(rows[:, :, None], rows[:, None], dim=-1).mean(0)


def _rounded(values: torch.Tensor, digits: int = 4) -> Any:
    return json.loads(json.dumps(values.tolist()), parse_float=lambda text: round(float(text), digits))


def as_json(record: dict[str, Any]) -> str:
    """JSON with a line for each run, so that differences between two reports can be read."""
    head = json.dumps({name: value for name, value in record.items() if name != "runs"}, ensure_ascii=False)
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in record["runs"])
    return f'{head[:-1]}, "runs": [\n{lines}\n]}}\n'
