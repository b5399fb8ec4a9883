"""Edge states: vectors of edges that attention reads and that every layer makes anew.

Files, in the order in which edges meet them:

- ``listed``: edges by target, their reverse edges, and blocks of targets.
- ``blocks``: a formula over edges, block by block, again in backward.
- ``states``: the base class: softmax and sums that all forms share.
- ``egt``, ``grit``, ``relational``: one published form each.
- ``choice``: the form that a layer's ``edge_update`` asks for.
- ``attention``: what RelationAttention and encoder layers do with it.
"""

from relgraph.nn.edge_states.attention import Pending as Pending
from relgraph.nn.edge_states.attention import check_call as check_call
from relgraph.nn.edge_states.attention import check_degree as check_degree
from relgraph.nn.edge_states.attention import check_fits as check_fits
from relgraph.nn.edge_states.attention import check_listed as check_listed
from relgraph.nn.edge_states.attention import refuse as refuse
from relgraph.nn.edge_states.choice import check_edge_update as check_edge_update
from relgraph.nn.edge_states.egt import EGTEdges as EGTEdges
from relgraph.nn.edge_states.grit import GRITEdges as GRITEdges
from relgraph.nn.edge_states.listed import Listed as Listed
from relgraph.nn.edge_states.relational import RelationalEdges as RelationalEdges
from relgraph.nn.edge_states.states import Attended as Attended
from relgraph.nn.edge_states.states import EdgeStates as EdgeStates
from relgraph.nn.edge_states.states import Sums as Sums
from relgraph.nn.edge_states.states import Terms as Terms
