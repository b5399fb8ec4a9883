"""Attention on several processes, by torch.distributed; loads on first use.

- :func:`~relgraph.distributed.context_parallel`: sequences, packed batches or one graph's rows split over processes.
- :class:`~relgraph.distributed.NodePartition`: the nodes of one large graph split over processes, edges only.
- :class:`~relgraph.distributed.Layout`: which rows each process holds; :func:`~relgraph.distributed.row_costs`: the
  work of each row, to split by.
- :func:`~relgraph.distributed.count_bytes`: how much a process sends.

Files, from the bottom up: ``layout``; ``costs``; ``collectives``, what is sent; ``together``, errors on all processes;
``context``, attention over split rows; ``partition``, attention over the edges of a split graph.
"""

from __future__ import annotations

from torch import distributed as _distributed

if not _distributed.is_available():
    raise ImportError("relgraph.distributed needs torch.distributed, which this build of torch lacks")

from relgraph.distributed.collectives import count_bytes as count_bytes
from relgraph.distributed.context.region import ContextParallel as ContextParallel
from relgraph.distributed.context.region import context_parallel as context_parallel
from relgraph.distributed.costs import row_costs as row_costs
from relgraph.distributed.layout import Layout as Layout
from relgraph.distributed.partition import NodePartition as NodePartition
