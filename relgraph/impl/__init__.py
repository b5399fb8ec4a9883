"""The implementations of attention, which all give the same results, and the rule that picks one.

In the order in which a call meets them:

- ``rule``: which implementation a call takes, and which calls each of them refuses.
- ``call``: a checked call and its answer; the same as a problem of the one primitive.
- ``terms``: B and C from tables, P back to the output, softmax of rows.
- ``op``: the one pair of custom ops; each implementation plugs in a forward and a backward.
- ``listed``: listed pairs by query and by key, as edges-only attention needs them.
- ``reference``: the equations as the paper writes them; tests compare all others with it.
- ``dense``: the split term with all scores in memory.
- ``chunked/``: the split term in blocks, in plain torch, on any device.
- ``edges/``: listed pairs only, by sparse products.
- ``native/``: kernels in C++ for CPUs, compiled at first use.
- ``triton/``: fused kernels for GPUs.

To add an implementation, add a folder, and its row and refusals in ``rule``.
"""

from relgraph.impl.rule import IMPLEMENTATIONS as IMPLEMENTATIONS
