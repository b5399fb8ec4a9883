"""Edge states: vectors of edges that attention reads and that every layer makes anew.

Files, in the order in which edges meet them:

- ``listed``: edges by target, their reverse edges, and blocks of targets.
- ``blocks``: a formula over edges, block by block, again in backward.
- ``relational``: the attention and the next states.
- ``attention``: what RelationAttention and encoder layers do with them.
"""

from relgraph.nn.edge_states.attention import Pending as Pending
from relgraph.nn.edge_states.attention import check_call as check_call
from relgraph.nn.edge_states.attention import check_fits as check_fits
from relgraph.nn.edge_states.attention import check_listed as check_listed
from relgraph.nn.edge_states.listed import Listed as Listed
from relgraph.nn.edge_states.relational import RelationalEdges as RelationalEdges
from relgraph.nn.edge_states.relational import check_edge_update as check_edge_update
