"""Which models of transformers have relative terms that ``patch`` does not know, as their sources say."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

transformers = pytest.importorskip("transformers")

from relgraph.interop.transformers import patching  # noqa: E402
from relgraph.interop.transformers.families import REFUSED, all_families  # noqa: E402

NAMES = (
    "relative|rel_pos|relpos|rel_attn|rel_emb|rel_logits|rel_bias|emb_rel|distance_embed|position_bias|pos_bias|"
    r"attention_bias(?:es|_table)|pair_bias|r_kernel|rpb|rpe\b"
)
TERM = re.compile(
    rf"^class (\w*relative\w*)\(nn\.Module|self\.(\w*(?:{NAMES})\w*)\s*(?::[^=\n]*)?=\s*(?:nn\.|torch\.nn|\w+\()",
    re.MULTILINE | re.IGNORECASE,
)
"""A module for relative positions, or a part or parameter with such a name."""

OTHERS = {
    "deepseek_v4": "positions within a window that is pooled",
    "dinat": "not yet: neighbors of natten, which transformers calls",
    "pp_doclayout_v4": "scores of the order of boxes, after attention",
    **dict.fromkeys(("sam3", "sam3_lite_text"), "biases that a network computes from boxes, over states of an image"),
    "zoedepth": "relative depth",
}
"""Models with such names that no family serves, and why."""


def test_the_sources_of_transformers_name_no_others():
    root = Path(transformers.__file__).parent / "models"
    files = [*root.glob("*/modeling_*.py")]
    assert len(files) > 100
    found = {file.parent.name: TERM.findall(file.read_text("utf-8")) for file in files}
    known = {kind.split(".")[0] for family in all_families().values() for kind in family.kinds}
    known |= {kind.split(".")[0] for kind in REFUSED}
    new = {name: {*terms} for name, terms in found.items() if terms and name not in known | OTHERS.keys()}
    assert not new, "serve them, or say why not in REFUSED or OTHERS"
    assert not known & OTHERS.keys(), "they are served or refused: strike them from OTHERS"


def test_the_readme_counts_all_families():
    readme = Path(__file__).parents[3] / "README.md"
    assert re.findall(r"(\d+) families", readme.read_text(encoding="utf-8")) == [str(len(all_families()))]


FILES = {"donut": "donut_swin", "maskformer": "maskformer_swin"}
"""Where a model's attention is in a file of another name."""


def test_refused_classes_exist_and_say_why():
    for kind, why in REFUSED.items():
        folder, name = kind.split(".")
        (found,) = Path(transformers.__file__).parent.glob(f"models/{folder}/modeling_{FILES.get(folder, folder)}.py")
        cls = getattr(import_module(f"transformers.models.{folder}.{found.stem}"), name)
        assert patching._looked_up(cls.__new__(cls), all_families()) == (None, "", why)
