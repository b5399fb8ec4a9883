"""What a call of attention is: its arguments, said once, its checks, and its answer.

In the order in which a call meets them:

- ``operands``: one row for each tensor, one for each option.
- ``check``: from the arguments of a caller to a checked call.
- ``offset``: the key position of query row 0; ``fold``: biases of queries, which become a query and a bias table.
- ``scores``: whether attention can use a function of scores.
- ``call``: the checked call, which cuts itself and lists its tensors; its answer.
"""

from relgraph.call.call import Answer as Answer
from relgraph.call.call import AttentionAux as AttentionAux
from relgraph.call.call import Call as Call
from relgraph.call.call import Drawn as Drawn
from relgraph.call.call import EdgeVectors as EdgeVectors
from relgraph.call.call import Gates as Gates
from relgraph.call.call import Tables as Tables
from relgraph.call.call import ValueMap as ValueMap
from relgraph.call.call import accumulation_dtype as accumulation_dtype
from relgraph.call.check import check_call as check_call
from relgraph.call.check import check_labels_fit as check_labels_fit
from relgraph.call.check import check_labels_type as check_labels_type
from relgraph.call.check import check_read as check_read
from relgraph.call.check import labels_from_ids as labels_from_ids
from relgraph.call.operands import Given as Given
from relgraph.call.operands import LabelsLike as LabelsLike
from relgraph.call.operands import Maps as Maps
from relgraph.call.operands import Options as Options
from relgraph.call.operands import Table as Table
from relgraph.call.operands import cut_given as cut_given
from relgraph.call.operands import map_given as map_given
