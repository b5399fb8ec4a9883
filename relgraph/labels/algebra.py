"""The algebra on labels, which writes out no pairs that the operands do not."""

from __future__ import annotations

from relgraph.arguments import check
from relgraph.labels.alike import check_labels
from relgraph.labels.base import Labels
from relgraph.labels.join import join
from relgraph.labels.naming import named_by
from relgraph.labels.rules import JoinRule, PriorityRule, ProductRule, RestrictionRule
from relgraph.labels.sum import SumLabels


def product(first: Labels, second: Labels, *more: Labels) -> Labels:
    """Give each combination of labels its own label: ``id = a · R_b + b``, the first operand counting slowest.

    A pair attends if it attends in all operands. It carries a label if it carries one in all of them, else -1.

    Args:
        first: labels other than a sum.
        second: labels of the same pairs.
        more: further labels of the same pairs.

    Returns:
        Labels with ``R_a · R_b`` ids. Distance labels stay distance labels, edges stay edges, and labels that were
        written out stay so.

    Raises:
        ValueError: labels of different pairs or with different offsets, or 2^31 ids together.
        NotImplementedError: parallel edges that each count, with labels other than distances.

    Example:
        >>> near, ends = rg.ClippedDistance(1)(3), rg.Segments(2)(torch.tensor([0, 1, 1]))
        >>> rg.labels.product(near, ends).to_dense()[0]
        tensor([[[ 4,  9,  9],
                 [ 2,  7, 11],
                 [ 2,  3,  7]]])
    """
    return _fold(ProductRule, first, second, *more)


def total(first: Labels, second: Labels, *more: Labels) -> SumLabels:
    """Give each pair several labels whose terms add up; each part has its own tables.

    A pair attends if it attends in all operands.

    Args:
        first: labels; a sum is replaced by its parts.
        second: labels of the same pairs.
        more: further labels of the same pairs.

    Returns:
        :class:`~relgraph.SumLabels`, with one ``num_labels`` and one set of ids per part.

    Raises:
        ValueError: labels of different pairs, or edges-only labels with parallel edges.

    Example:
        >>> labels = rg.labels.total(rg.ClippedDistance(1)(3), rg.Segments(2)(torch.tensor([0, 1, 1])))
        >>> labels.num_labels
        (3, 4)
        >>> labels.parts[1].to_dense()[0]
        tensor([[[0, 1, 1],
                 [2, 3, 3],
                 [2, 3, 3]]])
    """
    return SumLabels(first, second, *more)


def first_of(first: Labels, second: Labels, *more: Labels) -> Labels:
    """Take each pair's label from the first operand that has one; ids of later operands follow those of earlier ones.

    If a pair attends without a label in ``first``, ``second`` decides its label and whether it attends. A pair that
    does not attend in ``first`` does not attend.

    Args:
        first: labels other than a sum.
        second: labels of the same pairs.
        more: further labels of the same pairs.

    Returns:
        Labels with ``R_a + R_b`` ids, those of ``first`` and then ``R_a +`` those of ``second``. Edges over distances
        become edges with the distances as default.

    Raises:
        ValueError: labels of different pairs or with different offsets, or 2^31 ids together.
        NotImplementedError: parallel edges; or an edge without a label that does not attend in ``second``, while the
            default does.

    Example:
        >>> tree = rg.EdgeLabels(torch.tensor([[0], [2]]), torch.tensor([0]), 1, q_len=3, default=-1)
        >>> rg.labels.first_of(tree, rg.ClippedDistance(1)(3)).to_dense()[0]
        tensor([[[2, 3, 3],
                 [1, 2, 3],
                 [0, 1, 2]]])
    """
    return _fold(PriorityRule, first, second, *more)


def restrict(labels: Labels, mask: Labels, *more: Labels) -> Labels:
    """Keep the labels, but let only those pairs attend that attend in every mask; ids of masks are ignored.

    Args:
        labels: labels of any kind, a sum included.
        mask: labels of the same pairs, which say only which pairs attend.
        more: further masks.

    Returns:
        Labels with the ids and names of ``labels``. A sum stays a sum; distances restricted by distances stay
        distances.

    Raises:
        NotImplementedError: parallel edges that each count, in a mask or restricted by labels other than distances.

    Example:
        >>> rg.labels.restrict(rg.ClippedDistance(2)(100), rg.Window(8)(100))
        DistanceLabels(q_len=100, k_len=100, num_labels=5, distances=-9..9)
        >>> rg.labels.restrict(rg.ClippedDistance(2)(3), rg.Window(1, 0)(3)).to_dense()[0]
        tensor([[[ 2, -1, -1],
                 [ 1,  2, -1],
                 [-1,  1,  2]]])
    """
    check_labels("labels", labels, mask, *more)
    masks = [part for given in (mask, *more) for part in given._summands]
    if isinstance(labels, SumLabels):
        # A sum attends where all its parts do, so restricting one of them is enough.
        first = named_by(labels.parts[0]._named, _fold(RestrictionRule, labels.parts[0], *masks))
        return named_by(labels._named, SumLabels(first, *labels.parts[1:]))
    return named_by(labels._named, _fold(RestrictionRule, labels, *masks))


def _fold(rule: type[JoinRule], first: Labels, *more: Labels) -> Labels:
    check_labels("labels", first, *more)
    for labels in (first, *more):
        if isinstance(labels, SumLabels):
            raise TypeError(f"{rule.name} takes labels with one id per pair, got a sum: combine its parts one by one")
    joined = first
    for labels in more:
        assert isinstance(joined.num_labels, int) and isinstance(labels.num_labels, int)
        combined = rule(joined.num_labels, labels.num_labels)
        if combined.num_labels > check.MOST_IDS:
            raise ValueError(f"labels must have at most {check.MOST_IDS} ids together, got {combined.num_labels}")
        joined = join(combined, joined, labels)
    return joined
