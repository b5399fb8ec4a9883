"""Compatibility functions other than the scaled dot product, for the argument ``score=``.

``Softcap``, ``LeakyReLU`` or any function of one tensor changes each finished score, after scale and bias and before
masks. ``Additive`` and ``Bilinear`` replace the dot product. The paper names nonlinear compatibility functions as
future work.

- ``base``: what each answers for itself; the dot product; a function of the user.
- ``finished``: functions of finished scores that kernels know. ``replaced``: what replaces the dot product.
"""

from collections.abc import Callable

from torch import Tensor

from relgraph.arguments.public import lists_public
from relgraph.score.base import DOT as DOT
from relgraph.score.base import Compatibility as Compatibility
from relgraph.score.base import applied as applied
from relgraph.score.base import compatibility as compatibility
from relgraph.score.base import copied as copied
from relgraph.score.finished import LeakyReLU as LeakyReLU
from relgraph.score.finished import Named as Named
from relgraph.score.finished import Softcap as Softcap
from relgraph.score.finished import decode as decode
from relgraph.score.replaced import ACTIVATIONS as ACTIVATIONS
from relgraph.score.replaced import Additive as Additive
from relgraph.score.replaced import Bilinear as Bilinear

__all__ = ["Additive", "Bilinear", "LeakyReLU", "Softcap"]
__dir__ = lists_public(globals())

Score = Softcap | LeakyReLU | Additive | Bilinear | Callable[[Tensor], Tensor]
"""What ``score=`` accepts, apart from None for the dot product."""


# TEMPORARY, until all callers are moved


def finish(score, scores):
    return compatibility(score).finish(scores)


def encode(score):
    return list(compatibility(score).code)


def tensors_of(score):
    return compatibility(score).tensors()


def with_tensors(score, tensors):
    if score is None:
        return None
    found = compatibility(score).with_tensors(tensors)
    return found if isinstance(score, Compatibility) else found.function


def module_of(score):
    from torch import nn

    found = compatibility(score).function
    return found if isinstance(found, nn.Module) else None


def with_weight(score, weight):
    return score.with_weight(weight)


def with_module(score, module):
    found = compatibility(score).with_function(module)
    return found if isinstance(score, Compatibility) else module
