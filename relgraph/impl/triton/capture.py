"""CUDA graphs: what a call may do while one is recorded.

A graph repeats the launches that it recorded, on tensors whose numbers have changed since, and runs no Python. Whatever
depends on labels must therefore be computed by launches of its own, or be the same for all labels of these shapes: maps
of labels by distance are made anew at each replay, and so is the order of listed pairs by key. Maps of all other labels
have a size that the host must read. A map that was kept would serve the labels of the recording at every replay, which
nobody would notice; so these labels are refused.
"""

from __future__ import annotations

import torch

REFUSED = (
    "impl='triton' cannot be recorded in a CUDA graph with labels that are written out or lie over others: the size of "
    "their tile map depends on them, and a replay would not see that they changed. Record it with labels by distance, "
    "or edges alone; use impl='chunked'; or leave the call out of the graph"
)


def is_recording(device: torch.device) -> bool:
    """Whether a CUDA graph is being recorded."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
