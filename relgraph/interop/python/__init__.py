"""Python source as a graph over its tokens; needs no package.

- ``source``: ``read`` makes a ``SourceGraph`` of source; ``EDGE_TYPES`` and ``TOKEN_KINDS`` name its ids.
- ``tokens``: the tokens and where they are; ``syntax``: the syntax tree over them.
- ``scopes``: which names a function reads and binds.
- ``walk``, ``expressions``: the order of execution, statement by statement and inside expressions.
- ``flow``: the last reads and writes of each name along that order.
"""

from relgraph.arguments.public import lists_public
from relgraph.interop.python.source import EDGE_TYPES as EDGE_TYPES
from relgraph.interop.python.source import TOKEN_KINDS as TOKEN_KINDS
from relgraph.interop.python.source import SourceGraph as SourceGraph
from relgraph.interop.python.source import read as read

__dir__ = lists_public(globals())
