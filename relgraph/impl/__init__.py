"""The attention itself, once per strategy, all with one meaning; and the rule that picks one.

In the order in which a call meets them:

- ``rule``: which implementation a call takes, and which calls each of them refuses.
- ``call``: a checked call and its answer; the same as a problem of the one primitive.
- ``terms``: B and C from tables, P back to the output, softmax of rows.
- ``op``: the one pair of custom ops, into which implementations plug a forward and a backward.
- ``listed``: listed pairs by query and by key, as edges-only attention needs them.
- ``reference``: the equations to the letter, the oracle.
- ``dense``: the split term with all scores in memory.
- ``chunked/``: the split term in blocks, in plain torch, on any device.
- ``edges/``: listed pairs only, by sparse products.
- ``native/``: kernels in C++ for CPUs, compiled at first use.
- ``triton/``: fused kernels for GPUs.

A new implementation is a folder, a row and its refusals in ``rule``.
"""

from relgraph.impl.rule import IMPLEMENTATIONS as IMPLEMENTATIONS
