"""From a packed batch to a padded one, with one batch row per graph."""

from __future__ import annotations

import torch

from relgraph.arguments import check
from relgraph.labels.alike import check_labels
from relgraph.labels.base import Labels
from relgraph.labels.naming import named_by


def padded(labels: Labels, length: int | None = None) -> Labels:
    """Turn packed labels of G graphs into labels of a padded batch, for inputs ``[G, length, E]``.

    Use a padding mask to hide padded keys, which may attend in these labels.

    Args:
        labels: packed labels whose queries and keys are the same nodes of each graph.
        length: N, at least and by default the size of the largest graph.

    Returns:
        Labels with ``batch_size`` G, ``length`` queries and keys, and the same ids; row g holds graph g from position 0
        on. Edges stay edges, distances stay distances (the same in every row), blocks become dense labels of
        ``G · length²`` ids, and a sum stays a sum.

    Raises:
        ValueError: labels that are not packed or on the device ``meta``, no graphs, queries with other borders than the
            keys, graphs longer than ``length``, or blocks that would become more than 2^32 ids.

    Example:
        >>> graph = rg.Graph(torch.tensor([[0, 3], [1, 2]]), 5, ptr=torch.tensor([0, 2, 5]))
        >>> rg.labels.padded(rg.EdgeType(1)(graph)).to_dense()[1].int()
        tensor([[[0, 0, 0],
                 [1, 0, 0],
                 [0, 0, 0]],
        <BLANKLINE>
                [[0, 1, 0],
                 [0, 0, 0],
                 [0, 0, 0]]], dtype=torch.int32)
    """
    check_labels("labels", labels)
    if labels.q_ptr is None or labels.k_ptr is None:
        raise ValueError(f"labels must be packed, with ptr, got {labels!r}")
    check.data("labels", labels.q_ptr, labels.k_ptr)
    if labels.q_ptr is not labels.k_ptr and not torch.equal(labels.q_ptr, labels.k_ptr):
        raise ValueError("labels must have equal q_ptr and k_ptr, got different borders")
    sizes = labels.k_ptr.diff()
    longest = int(sizes.max()) if sizes.numel() else 0
    length = longest if length is None else check.integer("length", length, minimum=longest)
    if sizes.numel() == 0:
        raise ValueError("labels must hold at least one graph, got none")
    return named_by(labels._named, labels._padded(length))
