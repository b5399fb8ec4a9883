"""Read checkpoints of other code into relgraph's layers, from a state dict or a file; needs nothing else.

- :func:`~relgraph.interop.checkpoints.read`: the tensors of a file.
- :func:`~relgraph.interop.checkpoints.from_tensor2tensor`: ``dot_product_relative`` of tensor2tensor.
- :func:`~relgraph.interop.checkpoints.from_opennmt`: ``max_relative_positions`` of OpenNMT-py.
- :func:`~relgraph.interop.checkpoints.from_fairseq2`: the Shaw positions of fairseq2, as in w2v-BERT 2.0.
- :func:`~relgraph.interop.checkpoints.from_rat_sql`: the relations of RAT-SQL.
- :func:`~relgraph.interop.checkpoints.from_graphormer`: the encoder of Graphormer, with its biases of pairs.
- :func:`~relgraph.interop.checkpoints.from_bert`: ``relative_key`` and ``relative_key_query`` of BERT and models like
  it.

Each reader returns a module with copies of the weights, and the labeler whose labels pick the same rows as the original
model. The names under the prefix decide which module it is. A reader raises a ValueError if the prefix is that of
something else, if a tensor is missing or has another shape, dtype or device, if the module has no place for a tensor
under the prefix, unless ``leave_out`` names it, and if a pattern of ``leave_out`` matches nothing.

Reading a file never runs code from it: pickles are read only by ``torch.load(weights_only=True)``.

In the order in which a checkpoint meets the files:

- ``files``: tensors from a file.
- ``entries``: the tensors under a prefix, each taken once; a tensor that is left over is an error.
- ``reader``: a module for the weights of an attention, a stack or a model, by the names of an origin.
- ``tensor2tensor``, ``opennmt``, ``fairseq2``, ``rat_sql``, ``graphormer``, ``bert``: one file per origin, which knows
  its names.
"""

from __future__ import annotations

from relgraph.arguments.public import lists_public
from relgraph.interop.checkpoints.bert import from_bert
from relgraph.interop.checkpoints.fairseq2 import from_fairseq2
from relgraph.interop.checkpoints.files import read
from relgraph.interop.checkpoints.graphormer import from_graphormer
from relgraph.interop.checkpoints.opennmt import from_opennmt
from relgraph.interop.checkpoints.rat_sql import from_rat_sql
from relgraph.interop.checkpoints.tensor2tensor import from_tensor2tensor

__all__ = [
    "from_bert",
    "from_fairseq2",
    "from_graphormer",
    "from_opennmt",
    "from_rat_sql",
    "from_tensor2tensor",
    "read",
]
__dir__ = lists_public(globals())
