"""CUDA graphs: what a call may do while one is recorded.

A graph repeats the launches that it recorded, on tensors whose numbers have changed since, and runs no Python. So
everything that depends on labels must be computed by launches in the graph, or be the same for all labels of these
shapes: each replay makes maps of labels by distance again, and the order of listed pairs by key. The host must read the
size of maps of all other labels. A map that was kept would silently use the labels of the recording at every replay, so
a call with such labels raises an error.
"""

from __future__ import annotations

import torch

REFUSED = (
    "impl='triton' cannot be recorded in a CUDA graph with labels that are written out or listed over others: the size "
    "of their tile map depends on them, and a replay would not see that they changed. Record it with labels by "
    "distance, or with edges only; use impl='chunked'; or leave the call out of the graph"
)


def is_recording(device: torch.device) -> bool:
    """Whether a CUDA graph is being recorded."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
