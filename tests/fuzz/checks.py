"""All that is done for a seed, by name; what fails says how to see it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz import attention_layer, compare, edge_layers, label_answers
from tests.fuzz.compare import IMPLS

AROUND: dict[str, Callable[[int], Any]] = {
    "labels": label_answers.check_labels,
    "edges": edge_layers.check_edge_attention,
    "conv": edge_layers.check_conv,
    "layer": attention_layer.check_attention_layer,
}
"""What stands around the primitive."""

CHECKS = ("impls", *AROUND)
"""Every check; the first is that of all implementations."""


def run(name: str, seed: int, impls: Sequence[str] = (*IMPLS, "none")) -> list[str]:
    """Run a check on a seed.

    Args:
        name: of :data:`CHECKS`.
        seed: what is drawn.
        impls: for ``"impls"``, which to run.

    Returns:
        The implementations that answered, each once a dtype.

    Raises:
        FuzzError: something is not what the oracle gives; a note tells the command that shows it again.
    """
    try:
        if name == "impls":
            return compare.check(seed, impls)
        AROUND[name](seed)
    except Exception as error:
        chosen = f" --impl {' '.join(impls)}" if name == "impls" else ""
        error.add_note(f"reproduce: python -m tests.fuzz --seeds 1 --first {seed} --only {name}{chosen}")
        raise
    return []
