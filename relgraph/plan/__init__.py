"""Plans: labels as tensors and ints, for kernels.

- ``parts``: a plan is a sum of parts; a part is ids by distance, written out or by function, and listed pairs over it.
- ``lower``: from each kind of labels to a part.
- ``ids``: which id a pair has; ``cut``: the plan of some rows.
- ``codec``: a plan as a list of tensors and a list of ints, and back.
- ``memory``: what implementations derive from a plan and keep.
"""

from relgraph.labels.base import NOT_ATTENDING as NOT_ATTENDING
from relgraph.labels.borders import graph_at as graph_at
from relgraph.labels.function import FunctionIds as FunctionIds
from relgraph.plan.codec import decode as decode
from relgraph.plan.codec import encode as encode
from relgraph.plan.codec import on_device as on_device
from relgraph.plan.cut import cut as cut
from relgraph.plan.cut import cut_graphs as cut_graphs
from relgraph.plan.cut import offset_of_graphs as offset_of_graphs
from relgraph.plan.cut import offset_of_rows as offset_of_rows
from relgraph.plan.cut import written_block as written_block
from relgraph.plan.ids import dense_ids as dense_ids
from relgraph.plan.ids import distances as distances
from relgraph.plan.ids import ids_at as ids_at
from relgraph.plan.ids import ids_by_distance as ids_by_distance
from relgraph.plan.ids import inside_graphs as inside_graphs
from relgraph.plan.ids import listed_pairs as listed_pairs
from relgraph.plan.lower import SORTERS as SORTERS
from relgraph.plan.lower import SortedPairs as SortedPairs
from relgraph.plan.lower import lower as lower
from relgraph.plan.lower import plain as plain
from relgraph.plan.lower import sort_stably as sort_stably
from relgraph.plan.memory import memo_of as memo_of
from relgraph.plan.memory import plan_memo as plan_memo
from relgraph.plan.memory import tensor_once as tensor_once
from relgraph.plan.parts import DEAD as DEAD
from relgraph.plan.parts import EXTRA as EXTRA
from relgraph.plan.parts import FIRST as FIRST
from relgraph.plan.parts import Csr as Csr
from relgraph.plan.parts import DistanceIds as DistanceIds
from relgraph.plan.parts import LabelPlan as LabelPlan
from relgraph.plan.parts import Part as Part
from relgraph.plan.parts import WrittenIds as WrittenIds
