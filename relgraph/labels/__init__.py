"""Labels: what label each (query, key) pair carries.

``Labels`` is the base class. Its kinds, from the smallest to the largest for long inputs:

- ``DistanceLabels``: a function of the distance j - i; no pair is written out.
- ``EdgeLabels``: listed pairs, and a rule for all others.
- ``FunctionLabels``: a function of query and key, computed for the block that is attended.
- ``BlockLabels``: one block of ids per graph of a packed batch.
- ``DenseLabels``: one id per pair.
- ``SumLabels``: several of these at once, each part with its own tables.

``product``, ``total``, ``first_of`` and ``restrict`` combine labels; ``padded`` turns a packed batch into a padded one.
``UNLABELED`` (-1) is the id of a pair that attends without a label, ``NOT_ATTENDING`` (-2) that of a pair that does not
attend.

>>> ids, attend = rg.DistanceLabels(3, lookup=[0, -1, -2], left=1).to_dense()
>>> ids
tensor([[[-1, -1, -1],
         [ 0, -1, -1],
         [ 0,  0, -1]]])
>>> attend.int()
tensor([[[1, 0, 0],
         [1, 1, 0],
         [1, 1, 1]]], dtype=torch.int32)

Files, in the order in which data meets them:

- ``base``: what all kinds share, and what the library asks of each; ``naming``: names of ids; ``register``: a new kind.
- ``borders``: graphs of a packed batch; ``alike``: checks that labels cover the same pairs.
- ``pairs``, ``ragged``: some pairs by number; addresses of ids in flat blocks, and distances inside a graph.
- ``counts``, ``costs``: parts of counting pairs, and keys per row.
- ``rules``: how the codes of a pair combine into one.
- ``distance``, ``edge``, ``block``, ``dense``, ``function``, ``sum``: one kind each, with its answers.
- ``join``: two labels joined into one of the smallest kind.
- ``algebra``: the four functions that combine labels.
- ``padding``: from a packed batch to a padded one.
- ``describe``: the table that shows counts.
- ``memory``: results that are reused while their labels live.
"""

from __future__ import annotations

from relgraph.arguments.public import lists_public
from relgraph.labels.algebra import first_of as first_of
from relgraph.labels.algebra import product as product
from relgraph.labels.algebra import restrict as restrict
from relgraph.labels.algebra import total as total
from relgraph.labels.base import NOT_ATTENDING as NOT_ATTENDING
from relgraph.labels.base import UNLABELED as UNLABELED
from relgraph.labels.base import Labels as Labels
from relgraph.labels.block import BlockLabels as BlockLabels
from relgraph.labels.dense import DenseLabels as DenseLabels
from relgraph.labels.describe import LabelCounts as LabelCounts
from relgraph.labels.describe import SumCounts as SumCounts
from relgraph.labels.distance import DistanceLabels as DistanceLabels
from relgraph.labels.edge import EdgeLabels as EdgeLabels
from relgraph.labels.function import FunctionLabels as FunctionLabels
from relgraph.labels.padding import padded as padded
from relgraph.labels.register import register as _register
from relgraph.labels.sum import SumLabels as SumLabels

for _kind in (BlockLabels, DenseLabels, DistanceLabels, EdgeLabels, FunctionLabels, SumLabels):
    _register(_kind)

__dir__ = lists_public(globals())
