"""Pictures of labels, tables and attention; needs the extra ``relgraph[plot]``.

Labels: :func:`~relgraph.plot.label_matrix`. Learned tables: :func:`~relgraph.plot.table_norms` and
:func:`~relgraph.plot.table_similarity`. Attention: :func:`~relgraph.plot.label_mass`,
:func:`~relgraph.plot.label_mass_overview`, :func:`~relgraph.plot.label_mass_difference`,
:func:`~relgraph.plot.attention_tokens`, :func:`~relgraph.plot.attention_tree` and
:func:`~relgraph.plot.attention_graph`. A training run's logs: :func:`~relgraph.plot.log_label_mass`.

Pictures show names and tokens unchanged, even dollar signs, but write control characters as escapes. They shorten long
ones in the middle: more than 32 characters at axes and in legends, more than 16 at nodes and in titles. Characters that
the font lacks appear as boxes, and matplotlib warns: name fonts that have them in ``rcParams["font.family"]``.

Every picture is drawn on the matplotlib Axes given as ``ax``, or on those of a new pyplot figure, and its function
returns them. No function shows or saves a picture.

Files, in the order in which data meets them:

- ``matrix``, ``tables``, ``mass``, ``overview``, ``sequence``, ``tree``, ``graph``: the pictures.
- ``log``: the numbers of a picture for a log.
- ``_weights``, ``_mass``: attention weights and masses, checked and averaged.
- ``_codes``: labels as the matrix that is drawn.
- ``_names``: names and tokens as a picture writes them; which labels are distances, and their order.
- ``_layout``: positions of nodes.
- ``_colours``: a colour for each label.
- ``_style``: colours, Axes, ticks and colour bars of all pictures.
- ``_by_label``, ``_network``: one number per label; nodes and arrows.
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
from relgraph.plot.log import log_label_mass as log_label_mass
from relgraph.plot.mass import label_mass as label_mass
from relgraph.plot.matrix import label_matrix as label_matrix
from relgraph.plot.overview import label_mass_difference as label_mass_difference
from relgraph.plot.overview import label_mass_overview as label_mass_overview
from relgraph.plot.sequence import attention_tokens as attention_tokens
from relgraph.plot.tables import table_norms as table_norms
from relgraph.plot.tables import table_similarity as table_similarity
from relgraph.plot.tree import attention_tree as attention_tree

__dir__ = lists_public(globals())
