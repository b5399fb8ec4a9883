"""Pictures of labels, tables and attention; needs the extra ``relgraph[plot]``.

Labels: :func:`~relgraph.plot.label_matrix`. Learned tables: :func:`~relgraph.plot.table_norms`. Attention:
:func:`~relgraph.plot.label_mass`, :func:`~relgraph.plot.attention_tokens`, :func:`~relgraph.plot.attention_graph`.

Pictures show names and tokens unchanged, even dollar signs, but write control characters as escapes. They shorten long
ones in the middle: more than 32 characters at axes and in legends, more than 16 at nodes and in titles. Characters that
the font lacks appear as boxes, and matplotlib warns: name fonts that have them in ``rcParams["font.family"]``.

Every picture is drawn on the matplotlib Axes given as ``ax``, or on those of a new pyplot figure, and its function
returns them. A label has the same colour in all pictures of a figure. No function shows or saves a picture.

Files, in the order in which data meets them:

- ``matrix``, ``tables``, ``mass``, ``sequence``, ``graph``: the pictures.
- ``_weights``: attention weights, checked and averaged. ``_names``: names as a picture writes them, and their order.
- ``_colours``: a colour for each label. ``_network``: places of nodes, dots and arrows.
- ``_style``: colours, Axes, ticks and colour bars of all pictures.
"""

from __future__ import annotations

try:
    import matplotlib  # noqa: F401
    import networkx  # noqa: F401
    import scipy  # noqa: F401
except ImportError:
    raise ImportError(
        "relgraph.plot needs matplotlib, networkx and scipy: pip install matplotlib networkx scipy"
    ) from None

from relgraph.arguments.public import lists_public
from relgraph.plot.graph import attention_graph as attention_graph
from relgraph.plot.mass import label_mass as label_mass
from relgraph.plot.matrix import label_matrix as label_matrix
from relgraph.plot.sequence import attention_tokens as attention_tokens
from relgraph.plot.tables import table_norms as table_norms

__dir__ = lists_public(globals())
