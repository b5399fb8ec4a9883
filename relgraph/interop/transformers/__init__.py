"""Models of Hugging Face whose attention has learned tables, computed by relgraph; needs ``relgraph[transformers]``.

- :func:`~relgraph.interop.transformers.patch`: replaces how the attention of a model is computed, in place.
- :func:`~relgraph.interop.transformers.unpatch`: gives the model its own computation back.
- :func:`~relgraph.interop.transformers.convert`: an attention module as a layer of relgraph, weights copied.
- :func:`~relgraph.interop.transformers.register`: the attention implementation ``"relgraph"``, chosen by name.
- :class:`~relgraph.interop.transformers.Relation`: tables for a module that had none, with that implementation.
- :class:`~relgraph.interop.transformers.Report`: what was patched, what was not, and why.

In the order in which a model meets the files:

- ``patching``: finds the modules of a model, gives them their class here, and back.
- ``families``: what a family is, and the list of all.
- ``converting``: finds the family of a module, and where its tables are, for a layer with its weights.
- ``layers``: the layer, from projections and tables.
- ``interface``: the attention implementation that models choose by name.
- ``common``: masks, weights and options, the same for all families.
- ``t5`` and the other families, one file each: the forward of their attention modules.
"""

from __future__ import annotations

from relgraph.interop.transformers.common import check_version

check_version()

from relgraph.interop.transformers.converting import convert  # noqa: E402
from relgraph.interop.transformers.interface import Relation, register  # noqa: E402
from relgraph.interop.transformers.patching import Report, patch, unpatch  # noqa: E402

__all__ = ["Relation", "Report", "convert", "patch", "register", "unpatch"]
