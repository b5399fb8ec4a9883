"""The score of an attention layer and biases of its queries, checked before a call; and scores given by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from relgraph.arguments import check
from relgraph.call.scores import check_score_type, check_score_weight
from relgraph.labels import Labels
from relgraph.nn.inputs import Inputs, Names
from relgraph.nn.tables import NumLabels, RelationTables
from relgraph.score import compatibility


def check_score(score: Any, tables: RelationTables | None, heads: int, dim: int) -> Any:
    """Return ``score``; raise unless it fits the heads and the tables of a layer."""
    if tables is None and compatibility(score).by_label:
        raise ValueError("score=Bilinear needs tables for labels, as its maps are for labels, got num_labels=None")
    kinds, num_labels = ((), None) if tables is None else (tables.kinds, tables.num_labels)
    return check_score_fits(score, kinds, num_labels, heads, dim)


def check_score_fits(score: Any, kinds: Sequence[str], num_labels: NumLabels, heads: int, dim: int) -> Any:
    """Return ``score``; raise unless it fits heads of this number and size, and tables of these kinds, R or any R."""
    check_score_type(score)
    how, sizes = compatibility(score), {"H": heads, "D": dim}
    if not how.replaces_dot:
        return score
    weight = check.floating("score.weight", how.weight)
    if "weight" in vars(how) and weight.grad_fn is not None:  # a parametrized module computes it for each call
        raise ValueError(
            "score.weight must be a parameter, or a tensor without a graph, got a computed one, whose graph is gone "
            "after the first backward: let torch.nn.utils.parametrize compute it"
        )
    if how.additive and "query" in kinds:
        raise ValueError(f"tables must leave out 'query' with score=Additive, got {list(kinds)}")
    if how.by_label:
        one = check_one_label("score=Bilinear", num_labels)
        sizes["R"] = weight.shape[-3] if one is None else one
    check_score_weight(how, **sizes)
    return score


def check_one_label(what: str, num_labels: Any) -> int | None:
    """Return ``num_labels``; raise NotImplementedError if it is that of a sum: a map is for one label."""
    if isinstance(num_labels, tuple):
        raise NotImplementedError(f"{what} needs one label per pair, got a sum of {len(num_labels)} labels")
    return num_labels


def check_query_bias(name: str, wanted: Any, score: Any, tables: RelationTables | None) -> bool:
    """Return ``wanted``, whether there is the bias of this name; raise if score or tables have no term for it."""
    if not check.boolean(name, wanted):
        return False
    if compatibility(score).replaces_dot:
        raise ValueError(f"{name} must be False with score={type(score).__name__}: it is for dot products")
    if name == "position_bias" and (tables is None or "key" not in tables.kinds):
        got = "no tables" if tables is None else list(tables.kinds)
        raise ValueError(f"position_bias needs a key table, whose rows it is multiplied by, got {got}")
    return True


def check_row_scores(
    given: Any, tables: RelationTables | None, heads: int, labels: Any, inputs: Inputs, names: Names
) -> Any:
    """Scores by row, ``[B, H, N_q, R]``, or ``[H, N_q, R]`` without a batch, as ``functional`` takes them."""
    if given is None:
        return None
    if tables is None:
        raise ValueError("row_scores must be None for a layer without tables, whose labels carry no ids")
    if "key" in tables.kinds:
        raise ValueError(
            f"row_scores must be None for a layer with a key table, which gives the same term: leave 'key' out of "
            f"tables, got {list(tables.kinds)}"
        )
    sizes = labels.num_labels if isinstance(labels, Labels) else tables.num_labels
    if not isinstance(sizes, tuple):
        return _rows("row_scores", given, heads, sizes, inputs, names.query)
    if not isinstance(given, (tuple, list)) or len(given) != len(sizes):
        got = f"{len(given)}" if isinstance(given, (tuple, list)) else type(given).__name__
        raise ValueError(f"row_scores must be a tuple of {len(sizes)} tensors, one per part of the sum, got {got}")
    parts = enumerate(zip(given, sizes, strict=True))
    return tuple(
        None if x is None else _rows(f"row_scores[{i}]", x, heads, size, inputs, names.query) for i, (x, size) in parts
    )


def _rows(name: str, given: Any, heads: int, num_labels: int | None, inputs: Inputs, query: str) -> Tensor:
    lone = inputs.unbatched or inputs.packed
    *batch, q_len, _ = inputs.query.shape
    rows = check.floating(name, given)
    labels = rows.shape[-1] if num_labels is None and rows.dim() > 0 else num_labels  # a bank's; checked with its rows
    wanted = [*batch, heads, q_len, labels]
    if not check.shaped(rows, wanted):
        what = "[H, N_q, R]" if lone else "[B, H, N_q, R]"
        raise ValueError(f"{name} must have shape {what} = {wanted}, got {list(rows.shape)}")
    check.same_device(**{query: inputs.query, name: rows})
    if inputs.packed:
        return rows.transpose(0, 1)
    return rows[None] if inputs.unbatched else rows
