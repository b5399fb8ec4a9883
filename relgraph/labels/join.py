"""Combine two labels into one, of the smallest kind that holds the result."""

from __future__ import annotations

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.labels.alike import check_alike, common_batch
from relgraph.labels.base import NOT_ATTENDING, UNLABELED, Labels
from relgraph.labels.block import BlockLabels
from relgraph.labels.dense import DenseLabels
from relgraph.labels.distance import DistanceLabels
from relgraph.labels.edge import EdgeLabels
from relgraph.labels.function import join_by_function
from relgraph.labels.pairs import Pairs, union
from relgraph.labels.rules import JoinRule, PriorityRule, RestrictionRule


def join(rule: JoinRule, a: Labels, b: Labels) -> Labels:
    """Combine ``a`` and ``b``, neither of them a sum, by ``rule``."""
    check_alike(a, b)
    a, b = _merged(a), _merged(b)
    _check_parallel(rule, a, b)
    if isinstance(a, DenseLabels) or isinstance(b, DenseLabels):
        return _join_dense(rule, a, b)
    for labels in (a, b):
        if isinstance(labels, BlockLabels):
            return _join_blocks(rule, a, b, labels)
    if isinstance(a, EdgeLabels) or isinstance(b, EdgeLabels):
        return _join_edges(rule, a, b)
    if isinstance(a, DistanceLabels) and isinstance(b, DistanceLabels):
        return _join_distances(rule, a, b)
    return join_by_function(rule, a, b)


def _join_dense(rule: JoinRule, a: Labels, b: Labels) -> DenseLabels:
    device = b.device if a.device is None else a.device
    codes = rule.codes(_dense_codes(a).to(device), _dense_codes(b).to(device))
    return DenseLabels(codes.clamp(min=UNLABELED), rule.num_labels, attend=_attend(codes))


def _dense_codes(labels: Labels) -> Tensor:
    if isinstance(labels, DenseLabels):
        return labels.ids.long()
    ids, attend = labels.to_dense()
    return ids.masked_fill(~attend, NOT_ATTENDING)


def _attend(codes: Tensor) -> Tensor | None:
    """Which pairs attend; None when all are known to."""
    attend = codes != NOT_ATTENDING
    return None if check.can_look_at_data(codes) and bool(attend.all()) else attend


def _join_blocks(rule: JoinRule, a: Labels, b: Labels, shape: BlockLabels) -> BlockLabels:
    check.outside_compiled_code("joining blocks")
    pairs = shape._pairs()
    codes = rule.codes(a._codes_at(pairs), b._codes_at(pairs))
    return BlockLabels(
        codes.clamp(min=UNLABELED), rule.num_labels, shape.k_ptr, q_ptr=shape.q_ptr, attend=_attend(codes),
        lengths=(shape.q_len, shape.k_len),
    )  # fmt: skip


def _join_distances(rule: JoinRule, a: DistanceLabels, b: DistanceLabels) -> DistanceLabels:
    left = max(a.left, b.left)
    right = max(len(a.lookup) - a.left, len(b.lookup) - b.left)
    return DistanceLabels(
        a.q_len, a.k_len,
        lookup=[rule.code(_code_of(a, distance), _code_of(b, distance)) for distance in range(-left, right)], left=left,
        num_labels=rule.num_labels, q_offset=common_offset(a.q_offset, b.q_offset), ptr=a.k_ptr, q_ptr=a.q_ptr,
    )  # fmt: skip


def _code_of(labels: DistanceLabels, distance: int) -> int:
    return labels.lookup[min(max(distance + labels.left, 0), len(labels.lookup) - 1)]


def _join_edges(rule: JoinRule, a: Labels, b: Labels) -> EdgeLabels:
    """List every pair that either lists; the others follow the combined defaults."""
    check.outside_compiled_code("joining edges")
    batch = common_batch(a.batch_size, b.batch_size)
    listed = [labels for labels in (a, b) if isinstance(labels, EdgeLabels)]
    if len(listed) == 2:
        mine, theirs = (labels._pairs(batch)[0] for labels in listed)
        pairs = union(mine, theirs, a)
        mine, theirs = a._codes_at(pairs), b._codes_at(pairs)
    else:
        # Edge by edge, not looked up by pair, so that parallel edges stay separate.
        pairs, ids = listed[0]._pairs(batch)
        mine, theirs = (ids if labels is listed[0] else labels._codes_at(pairs) for labels in (a, b))
    codes = rule.codes(mine, theirs)
    default = _join_defaults(rule, _default(a), _default(b))
    attend = codes != NOT_ATTENDING
    if not bool(attend.all()):
        if isinstance(rule, PriorityRule):
            _check_left_out(default, pairs.where(~attend))
        pairs, codes = pairs.where(attend), codes[attend]
    return EdgeLabels(
        torch.stack([pairs.key, pairs.query]), codes, rule.num_labels, q_len=a.q_len, k_len=a.k_len,
        default=default if isinstance(default, Labels) or default != NOT_ATTENDING else None,
        duplicates=listed[0].duplicates if len(listed) == 1 else "error", ptr=a.k_ptr, q_ptr=a.q_ptr,
        batch=pairs.row if batch != 1 else None, batch_size=batch,
    )  # fmt: skip


def _default(labels: Labels) -> int | Labels:
    """The code or the labels of pairs that are not listed."""
    if not isinstance(labels, EdgeLabels):
        return labels
    return NOT_ATTENDING if labels.default is None else labels.default


def _join_defaults(rule: JoinRule, a: int | Labels, b: int | Labels) -> int | Labels:
    if isinstance(a, Labels):
        joined = join(rule, a, _constant(b, rule.r_b, a) if isinstance(b, int) else b)
    elif isinstance(b, Labels):
        joined = join(rule, _constant(a, rule.r_a, b), b)
    else:
        return rule.code(a, b)
    if isinstance(joined, DistanceLabels) and len(set(joined.lookup)) == 1:
        return joined.lookup[0]
    return joined


def _constant(code: int, num_labels: int, like: Labels) -> DistanceLabels:
    """Labels that give every pair of ``like`` the same code."""
    return DistanceLabels(
        like.q_len, like.k_len, lookup=(code,), left=0, num_labels=num_labels,
        q_offset=like.q_offset if isinstance(like, DistanceLabels) else None, ptr=like.k_ptr, q_ptr=like.q_ptr,
    )  # fmt: skip


def _merged(labels: Labels) -> Labels:
    """Drop parallel edges that do not count."""
    if not isinstance(labels, EdgeLabels) or not labels.parallel or labels._several:
        return labels
    check.outside_compiled_code("merging parallel edges")
    return labels._merged()


def _check_parallel(rule: JoinRule, a: Labels, b: Labels) -> None:
    """Raise if parallel edges meet anything but distances, are a mask, or take part in ``first_of``."""
    for labels, other in ((a, b), (b, a)):
        restricts = isinstance(rule, RestrictionRule) and labels is b
        apart = isinstance(other, DistanceLabels) and not restricts and not isinstance(rule, PriorityRule)
        if labels._several and not apart:
            advice = (
                "merge them, or give EdgeLabels a default and duplicates='first'"
                if isinstance(rule, RestrictionRule)
                else "give the labeler (or EdgeLabels) a default, and duplicates='first' to keep one of them or "
                "duplicates='sum' to add up their terms and compose by +"
            )
            raise NotImplementedError(
                f"{rule.name} (a {rule.symbol} b): parallel edges give a pair several labels and cannot be combined "
                f"with {type(other).__name__} here; {advice}"
            )


def _check_left_out(default: int | Labels, pairs: Pairs) -> None:
    """Raise if a listed pair that no longer attends would attend by the default."""
    codes = default._codes_at(pairs) if isinstance(default, Labels) else torch.full_like(pairs.key, default)
    if bool((codes != NOT_ATTENDING).any()):
        raise NotImplementedError(
            "first_of: an edge without a label does not attend in the second labels, and the default of the first "
            "would take its place; write the first out by .dense()"
        )


def common_offset(a: int | Tensor | None, b: int | Tensor | None) -> int | Tensor | None:
    """The q_offset of both, None counting as 0; if they are equal, the one with an entry per batch row."""
    if a is None and b is None:
        return None
    x, y = 0 if a is None else a, 0 if b is None else b
    if not same_offset(x, y):
        shown = [value.tolist() if isinstance(value, Tensor) else value for value in (a, b)]
        raise ValueError(f"labels must count distances from the same q_offset, got {shown[0]} and {shown[1]}")
    return max((x, y), key=lambda value: value.dim() if isinstance(value, Tensor) else -1)


def same_offset(x: int | Tensor, y: int | Tensor) -> bool:
    """Whether two offsets are equal; True when that cannot be seen."""
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        return x == y
    seen = check.can_look_at_data(*(value for value in (x, y) if isinstance(value, Tensor)))
    return not seen or bool(torch.as_tensor(x == y).all())
