"""The implementations of attention, which all give the same results, and the rule that picks one.

In the order in which a call meets them:

- ``rule``: which implementation a call takes, and which calls each of them refuses.
- ``prepared``: calls of a form that came before.
- ``problem``: a checked call as a problem of the one primitive.
- ``terms``: B and C from tables, P back to the output, softmax of rows.
- ``op``: the one pair of custom ops; each implementation plugs in a forward and a backward.
- ``by_function``: problems whose ids a function computes, in blocks of rows.
- ``draw``: which weights dropout keeps, by place; ``budget``: how large a block may be.
- ``listed``: listed pairs by query and by key, as edges-only attention needs them.
- ``units``: batch rows and graphs of a call, for implementations that compute it piece by piece.
- ``eager/``: plain torch that torch differentiates: ``reference``, ``dense``, ``rows``, ``edges``.
- ``chunked/``: the split term in blocks, in plain torch, for CPUs without compiled kernels.
- ``native/``: kernels in C++ for CPUs, compiled at installation or bundled.
- ``triton/``: fused kernels for GPUs.

To add an implementation, add a folder, and its row and refusals in ``rule``.
"""

from relgraph.impl.rule import IMPLEMENTATIONS as IMPLEMENTATIONS
