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
from relgraph.score.finished import NAMED as NAMED
from relgraph.score.finished import LeakyReLU as LeakyReLU
from relgraph.score.finished import Named as Named
from relgraph.score.finished import Softcap as Softcap
from relgraph.score.replaced import ACTIVATIONS as ACTIVATIONS
from relgraph.score.replaced import Activation as Activation
from relgraph.score.replaced import Additive as Additive
from relgraph.score.replaced import Bilinear as Bilinear
from relgraph.score.replaced import Coded as Coded
from relgraph.score.replaced import decode as decode
from relgraph.score.replaced import encode as encode

__all__ = ["Additive", "Bilinear", "LeakyReLU", "Softcap"]
__dir__ = lists_public(globals())

Score = Softcap | LeakyReLU | Additive | Bilinear | Callable[[Tensor], Tensor]
"""What ``score=`` accepts, apart from None for the dot product."""
