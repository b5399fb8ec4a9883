"""The functions of relgraph: they check the arguments once, then one implementation answers.

In the order in which a call meets them:

- ``attention``: ``relation_attention``; ``relation_attention_with_aux`` also returns an ``AttentionAux``.
- ``edges``: ``edge_attention``, which adds edge vectors and returns a weight per edge.
- ``region``: the hook by which several processes answer a call together.
- ``sink``: a score per head that joins the softmax; it changes the answer of an implementation.
- ``choice``: ``which_impl`` returns an ``ImplChoice``: which implementation a call takes and why.
- ``merge``: joins attention over disjoint key sets.
"""

from relgraph.arguments.public import lists_public
from relgraph.call import AttentionAux as AttentionAux
from relgraph.functional.attention import relation_attention as relation_attention
from relgraph.functional.attention import relation_attention_with_aux as relation_attention_with_aux
from relgraph.functional.choice import ImplChoice as ImplChoice
from relgraph.functional.choice import which_impl as which_impl
from relgraph.functional.edges import edge_attention as edge_attention
from relgraph.functional.merge import merge as merge

__dir__ = lists_public(globals())
