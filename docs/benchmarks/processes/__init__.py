"""What several processes send and hold: a cost model, the counts that hold it to account, and the choice it makes.

- ``work``: what is to be computed, a stack of layers over sequences or over the edges of a graph.
- ``model``: bytes, floating-point operations and memory of one process in each mode, as plain formulas.
- ``worlds``: a few gloo processes on this machine.
- ``counted``: bytes that they really send, beside the model.
- ``peaks``: memory that they really take, beside one process.
- ``choose``: which mode fits a machine and takes least time, by the model.
"""
