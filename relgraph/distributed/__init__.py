"""Attention on several processes, by torch.distributed; loads on first use.

- :func:`~relgraph.distributed.context_parallel`: split sequences or packed batches by rows over processes.
- :class:`~relgraph.distributed.ContextParallel`: the region that this block yields.
- :class:`~relgraph.distributed.Layout`: which rows each process holds.
- :class:`~relgraph.distributed.HeadParallel`: split the heads of a layer over processes.

After you import this module, :func:`~relgraph.relation_attention` takes DTensors that are sharded by batch or by heads.

Files, from the bottom up: ``layout``; ``parts`` of labels; ``collectives``, what is sent; ``together``, errors on all
processes; ``context``, attention over split rows; ``tensors``, attention of DTensors; ``head_parallel``.
"""

from __future__ import annotations

from torch import distributed as _distributed

if not _distributed.is_available():
    raise ImportError("relgraph.distributed needs torch.distributed, which this build of torch lacks")

from relgraph.arguments.public import lists_public
from relgraph.distributed.context.region import ContextParallel as ContextParallel
from relgraph.distributed.context.region import context_parallel as context_parallel
from relgraph.distributed.head_parallel import HeadParallel as HeadParallel
from relgraph.distributed.layout import Layout as Layout
from relgraph.distributed.tensors import attend_dtensors as _attend_dtensors
from relgraph.distributed.tensors import has_dtensors as _has_dtensors
from relgraph.functional.region import answer_tensors as _answer_tensors

_answer_tensors(_has_dtensors, _attend_dtensors)

__dir__ = lists_public(globals())
