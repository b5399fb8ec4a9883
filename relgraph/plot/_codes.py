"""Labels as the matrix that is drawn: one code per pair, and which pairs carry more than one label."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from relgraph.arguments import check
from relgraph.arguments.hints import in_place_of_labels
from relgraph.labels import Labels
from relgraph.labels.base import NOT_ATTENDING
from relgraph.labels.borders import graph_of
from relgraph.labels.pairs import Pairs
from relgraph.plot._names import names_of_part

MOST_DRAWN = 1 << 28
"""How many pairs are written out for a picture, those of 16,384 queries and as many keys."""


def one_part(labels: Any, names: Any, part: Any) -> tuple[Labels, Any]:
    """One part of a sum with its names, on the CPU; other labels have only part 0."""
    if not isinstance(labels, Labels):
        raise TypeError(f"labels must be Labels, got {in_place_of_labels(labels)}")
    check.not_meta("labels", labels)
    if labels.q_len * labels.k_len > MOST_DRAWN:
        raise ValueError(f"labels must be of at most {MOST_DRAWN:,} pairs to be drawn, got {labels!r}")
    parts = labels._summands
    check.integer("part", part, minimum=0, maximum=len(parts) - 1)
    return parts[part].to("cpu"), names if len(parts) == 1 else names_of_part(names, part, len(parts))


def codes_of(labels: Labels, batch: int) -> np.ndarray:
    """``[N_q, N_k]``: ids, -1 without a label, -2 if a pair does not attend; the first of parallel edges counts."""
    codes = torch.full((labels.q_len, labels.k_len), NOT_ATTENDING)
    within = torch.ones(labels.q_len, labels.k_len, dtype=torch.bool)
    if labels.q_ptr is not None and labels.k_ptr is not None:
        within = graph_of(labels.q_ptr, labels.q_len)[:, None] == graph_of(labels.k_ptr, labels.k_len)
    query, key = within.nonzero().unbind(1)
    codes[query, key] = labels._codes_at(Pairs(torch.full_like(query, batch), query, key))
    return codes.numpy()
