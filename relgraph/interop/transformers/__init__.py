"""Let relgraph compute the attention of models of Hugging Face; needs the extra ``relgraph[transformers]``.

- :func:`~relgraph.interop.transformers.patch`: lets relgraph compute the attention of a model with learned tables.
- :func:`~relgraph.interop.transformers.unpatch`: undoes that.
- :func:`~relgraph.interop.transformers.convert`: makes a layer of relgraph from an attention module, with its weights.
- :func:`~relgraph.interop.transformers.register`: adds the attention implementation ``"relgraph"``, chosen by name.
- :class:`~relgraph.interop.transformers.Relation`: adds tables to a module that had none, with that implementation.
- :class:`~relgraph.interop.transformers.Report`: says which modules were patched, which were not, and why.

In the order in which a model meets the files:

- ``patching``: finds the modules of a model and changes their class, or changes it back.
- ``families``: defines a family of models, and lists all families.
- ``converting``: finds the family of a module and its tables, to make a layer with its weights.
- ``layers``: makes the layer from projections and tables.
- ``self_attention``: the forward of modules whose projections have usual names and which have no cache.
- ``interface``: the attention implementation that models choose by name.
- ``common``: masks, weights and options, the same for all families.
- ``t5`` and the other families, one file each: the forward of their attention modules.
"""

from __future__ import annotations

from relgraph.arguments.public import lists_public
from relgraph.interop.transformers.common import check_version

check_version()

from relgraph.interop.transformers.adding import add_relations, from_pretrained  # noqa: E402
from relgraph.interop.transformers.aligning import align  # noqa: E402
from relgraph.interop.transformers.batching import RelationCollator  # noqa: E402
from relgraph.interop.transformers.converting import convert  # noqa: E402
from relgraph.interop.transformers.interface import register  # noqa: E402
from relgraph.interop.transformers.patching import Report, patch, unpatch  # noqa: E402
from relgraph.interop.transformers.relation import Relation  # noqa: E402

__all__ = [
    "Relation", "RelationCollator", "Report", "add_relations", "align", "convert", "from_pretrained", "patch",
    "register", "unpatch",
]  # fmt: skip
__dir__ = lists_public(globals())
