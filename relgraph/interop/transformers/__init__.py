"""Let relgraph compute the attention of models of Hugging Face; needs the extra ``relgraph[transformers]``.

- :func:`~relgraph.interop.transformers.patch`: lets relgraph compute the attention of a model with learned tables.
- :func:`~relgraph.interop.transformers.register`: adds the attention implementation ``"relgraph"``, chosen by name.
- :func:`~relgraph.interop.transformers.unpatch`: undoes both.
- :func:`~relgraph.interop.transformers.report`: says which modules of a model relgraph computes, and which not.
- :class:`~relgraph.interop.transformers.Report`: what it says, one line for all layers that are alike.
- :class:`~relgraph.interop.transformers.RelgraphCallback`: does one of both for Trainer.
- :func:`~relgraph.interop.transformers.add_relations`: lets a pretrained model take labels between tokens.
- :func:`~relgraph.interop.transformers.from_pretrained`: loads such a model.
- :func:`~relgraph.interop.transformers.align`: carries a graph of words over to the tokens of a tokenizer.
- :class:`~relgraph.interop.transformers.RelationCollator`: batches labels for Trainer.
- :class:`~relgraph.interop.transformers.Relation`: the tables of one attention module.

In the order in which a model meets the files:

- ``patching``: finds the modules of a model and changes their class, or changes it back.
- ``families``: defines a family of models, and lists all families.
- ``self_attention``: the forward of modules whose projections have usual names and which have no cache.
- ``interface``: the attention implementation that models choose by name; ``by_name``: what that name serves.
- ``callback``: chooses a way for Trainer.
- ``relation``: the tables of an attention module that had none; ``adding`` gives them to a model, ``saved`` writes them
  into its configuration.
- ``aligning``, ``batching``: from graphs of words to labels of a batch of tokens.
- ``common``: masks, weights and options, the same for all families; ``words``: which arguments are known.
- ``t5`` and the other families, one file each: the forward of their attention modules.
"""

from __future__ import annotations

from relgraph.arguments.public import lists_public
from relgraph.interop.transformers.common import check_version

check_version()

from relgraph.interop.transformers.adding import add_relations, from_pretrained  # noqa: E402
from relgraph.interop.transformers.aligning import align  # noqa: E402
from relgraph.interop.transformers.batching import RelationCollator  # noqa: E402
from relgraph.interop.transformers.callback import RelgraphCallback  # noqa: E402
from relgraph.interop.transformers.interface import register  # noqa: E402
from relgraph.interop.transformers.patching import Report, patch, report, unpatch  # noqa: E402
from relgraph.interop.transformers.relation import Relation  # noqa: E402

__all__ = [
    "Relation", "RelationCollator", "RelgraphCallback", "Report", "add_relations", "align", "from_pretrained",
    "patch", "register", "report", "unpatch",
]  # fmt: skip
__dir__ = lists_public(globals())
