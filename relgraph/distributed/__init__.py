"""Attention on several processes, by torch.distributed; loads on first use.

- :func:`~relgraph.distributed.context_parallel`: split sequences, packed batches or one graph's rows over processes.
- :class:`~relgraph.distributed.ContextParallel`: the region that this block yields.
- :class:`~relgraph.distributed.HeadParallel`: split the heads of a layer over processes.
- :class:`~relgraph.distributed.NodePartition`: split the nodes of one large graph over processes, for attention over
  edges.
- :class:`~relgraph.distributed.Layout`: which rows each process holds; :func:`~relgraph.distributed.row_costs`: the
  work of each row, for a split into equal shares.
- :func:`~relgraph.distributed.count_bytes`: how much a process sends.

After you import this module, :func:`~relgraph.relation_attention` takes DTensors that are sharded by batch or by heads.

Files, from the bottom up: ``layout``; ``costs``; ``parts`` of labels; ``collectives``, what is sent;
``together``, errors on all processes; ``context``, attention over split rows; ``partition``, over the edges of
a split graph; ``tensors``, attention of DTensors; ``head_parallel``.
"""

from __future__ import annotations

from torch import distributed as _distributed

if not _distributed.is_available():
    raise ImportError("relgraph.distributed needs torch.distributed, which this build of torch lacks")

from relgraph.arguments.public import lists_public
from relgraph.distributed.collectives import count_bytes as count_bytes
from relgraph.distributed.context.region import ContextParallel as ContextParallel
from relgraph.distributed.context.region import context_parallel as context_parallel
from relgraph.distributed.costs import row_costs as row_costs
from relgraph.distributed.head_parallel import HeadParallel as HeadParallel
from relgraph.distributed.layout import Layout as Layout
from relgraph.distributed.partition import NodePartition as NodePartition
from relgraph.distributed.tensors import DTensors as _DTensors
from relgraph.functional.region import answer_tensors as _answer_tensors

_answer_tensors(_DTensors())

__dir__ = lists_public(globals())
