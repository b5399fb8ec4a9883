"""One good call of every public callable, a file per floor; ``tests/test_bad_input.py`` spoils their arguments.

A key is the public name, ``"Graph"`` or ``"Graph.batch"``, and after a space whatever tells several calls of it apart. Functions of
``relgraph.interop`` have the name of their module before their own: ``"conllu.read"``.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.good_calls import distributed, functional, graphs, hugging_face, interop, labelers, labels, nn, plot, pyg
from tests.judge import Good

GOOD_CALLS: dict[str, Callable[[], Good]] = {
    **labels.GOOD_CALLS,
    **graphs.GOOD_CALLS,
    **labelers.GOOD_CALLS,
    **functional.GOOD_CALLS,
    **nn.GOOD_CALLS,
    **pyg.GOOD_CALLS,
    **interop.GOOD_CALLS,
    **hugging_face.GOOD_CALLS,
    **plot.GOOD_CALLS,
    **distributed.GOOD_CALLS,
}
