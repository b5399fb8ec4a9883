"""A packed memory, one graph for each batch row of a padded target, which stays packed or is padded by its borders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import brief
from relgraph.functional.region import active, whole_length
from relgraph.labelers import Window
from relgraph.labels import Labels
from relgraph.labels.borders import check_ptr, graph_at, graph_of
from relgraph.nn.cache import LayerCache
from relgraph.nn.made_labels import labels_of_lengths
from relgraph.nn.masks import check_padding


def is_packed(labels: Any) -> bool:
    """Whether these are packed labels."""
    return isinstance(labels, Labels) and labels.packed


def within_graphs(ptr: Tensor, length: int) -> Tensor:
    """The position of each packed row within its graph, ``[length]``; of the rows of this process within a region."""
    region = active()
    rows = torch.arange(length, device=ptr.device) if region is None else region.positions(length, ptr.device)
    return rows - ptr[graph_at(ptr, rows)]


def check_source(src: Tensor, tgt: Tensor, labels: Any, memory_labels: Any) -> Tensor | None:
    """The borders of a packed source; raise ValueError unless it has one graph for each batch row of ``tgt``."""
    if not is_packed(labels):
        if src.dim() == 2 and tgt.dim() == 3 and tgt.shape[0] != 1:
            raise ValueError(
                f"src_labels must be packed, with the borders (ptr) of {tgt.shape[0]} graphs, as src has shape "
                f"{list(src.shape)} and tgt {list(tgt.shape)}, got {brief(labels)}"
            )
        return None
    _check_graphs("src_labels", labels.k_ptr, tgt)
    if is_packed(memory_labels) and check.can_look_at_data(labels.k_ptr, memory_labels.k_ptr, memory_labels.q_ptr):
        if not torch.equal(memory_labels.k_ptr, labels.k_ptr):
            raise ValueError("memory_labels must have the borders (ptr) of src_labels for the memory, got others")
        if not torch.equal(memory_labels.q_ptr, _target_borders(tgt, labels.k_ptr)):
            raise ValueError(
                f"memory_labels must have borders (q_ptr) at every {tgt.shape[1]} rows, the length of tgt, got others"
            )
    return labels.k_ptr


def attend_by_borders(
    tgt: Tensor, memory: Any, ptr: Any, padding: Any, labels: Any, *, pads: bool
) -> tuple[Tensor, Tensor | None, Any]:
    """The memory, its padding mask and its labels for a decoder, from a packed memory ``[T, E]`` and its borders.

    Either the memory stays packed, with packed labels that let every target row attend to its own graph; or it is
    padded, ``[B, M, E]``, with a mask ``[B, M]``, where M is the size of the largest graph.
    """
    if active() is not None:
        raise NotImplementedError(
            "a packed memory for padded targets cannot be split within context_parallel: pad the memory, [B, M, E]"
        )
    if memory is None:
        raise ValueError("memory_ptr must be left out when memory is None, as the cache holds it")
    if is_packed(labels):
        raise ValueError("memory_ptr must be left out with packed memory_labels, which have borders of their own")
    if check.floating("memory", memory).dim() != 2:
        raise ValueError(f"memory must have shape [T, E] with memory_ptr, got {list(memory.shape)}")
    ptr = check_ptr("memory_ptr", ptr, memory.shape[0])
    check.same_device(memory=memory, memory_ptr=ptr)
    _check_graphs("memory_ptr", ptr, tgt)
    if not pads:
        q_ptr = _target_borders(tgt, ptr)
        return memory, padding, Window()(tgt.shape[0] * tgt.shape[1], memory.shape[0], ptr=ptr, q_ptr=q_ptr)
    hidden = check_padding(padding, 1, memory.shape[0], unbatched=True, name="memory_key_padding_mask")
    rows, padding = _padded(memory, ptr)  # [B, M, E], [B, M]
    if hidden is not None:
        check.same_device(memory=memory, memory_key_padding_mask=hidden)
        more, _ = _padded(hidden[0], ptr)
        padding = more | padding if more.dtype == torch.bool else more.masked_fill(padding, float("-inf"))
    return rows, padding, labels


def labels_of_memory(labeler: Any, tgt: Tensor, memory: Any, cache: LayerCache | None) -> Labels | None:
    """The labels of the rows of ``tgt`` and all rows of the memory; None as long as there is no memory."""
    past, length = (0, 0) if cache is None else (len(cache), len(cache.multihead_attn))
    if memory is not None:
        if check.tensor("memory", memory).dim() not in (2, 3):
            raise ValueError(f"memory must have shape [B, M, E] or [M, E], got {list(memory.shape)}")
        length = memory.shape[-2]
    elif not length:
        return None
    lengths = [whole_length(tgt.shape[-2]), whole_length(length)]
    return labels_of_lengths(labeler, lengths, past, tgt, "memory_labels")


def _check_graphs(name: str, ptr: Tensor, tgt: Tensor) -> None:
    """Raise ValueError, which calls the borders ``name``, unless ``tgt`` is a batch of one row per graph."""
    graphs = ptr.shape[0] - 1
    if tgt.dim() != 3 or tgt.shape[0] != graphs:
        raise ValueError(
            f"{name} must have the borders of one graph for each batch row of tgt, [B, N, E], "
            f"got {graphs} graphs and a tgt of shape {list(tgt.shape)}"
        )


def _target_borders(tgt: Tensor, ptr: Tensor) -> Tensor:
    """The borders of the batch rows of ``tgt``, ``[B, N, E]``, if one follows the other."""
    return torch.arange(tgt.shape[0] + 1, device=ptr.device) * tgt.shape[1]


def _padded(x: Tensor, ptr: Tensor) -> tuple[Tensor, Tensor]:
    """Packed rows ``[T, ...]`` as ``[B, M, ...]``, with zeros for padding, and a mask ``[B, M]``, True for padding."""
    sizes = ptr.diff()
    longest = int(sizes.max()) if sizes.numel() else 0
    rows = x.new_zeros(sizes.shape[0], longest, *x.shape[1:])
    where = graph_of(ptr, x.shape[0]), within_graphs(ptr, x.shape[0])
    return rows.index_put(where, x), torch.arange(longest, device=ptr.device) >= sizes[:, None]
