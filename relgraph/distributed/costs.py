"""How much work each row of attention needs, so that processes can get equal shares."""

from __future__ import annotations

from torch import Tensor

from relgraph.arguments import check
from relgraph.labels import Labels
from relgraph.labels.alike import check_labels
from relgraph.labels.costs import Rows


def row_costs(labels: Labels, is_causal: bool = False) -> Tensor:
    """Count the keys that each row attends to: its share of the work, for :meth:`~relgraph.distributed.Layout.by_cost`.

    For edges-only labels that is the number of edges into each node; in a packed batch at most the keys of the row's
    graph. Arithmetic counts the pairs without writing them out. Batch rows add up. In a sum, a row costs as much as in
    the part in which it has the fewest keys, because it attends to no more than these.

    Args:
        labels: labels of all rows.
        is_causal: whether a row sees only keys up to its own position, in its graph; the labels' ``q_offset`` counts.

    Returns:
        ``[N_q]``, int64, on the device of the labels.

    Raises:
        TypeError: not Labels, or ``is_causal`` that is not a bool.
        ValueError: labels without data, such as those on the device ``meta``.

    Example:
        >>> rg.distributed.row_costs(rg.ClippedDistance(2)(4), is_causal=True)
        tensor([1, 2, 3, 4])
        >>> edges = rg.EdgeLabels(torch.tensor([[0, 1, 3], [1, 2, 2]]), torch.tensor([0, 1, 0]), 2, q_len=4)
        >>> costs = rg.distributed.row_costs(edges)
        >>> costs
        tensor([0, 1, 2, 0])
        >>> rg.distributed.Layout.by_cost(costs, 2).lengths
        [2, 2]
    """
    check_labels("labels", labels)
    check.boolean("is_causal", is_causal)
    check.not_meta("labels", labels)
    return labels._keys_per_row(Rows(labels, is_causal))
