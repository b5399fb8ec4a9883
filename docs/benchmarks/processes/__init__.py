"""What several processes send and hold: a cost model, and the counts and measurements that hold it to account.

- ``model``: bytes and memory of one process in each mode, as plain formulas.
- ``worlds``: a few gloo processes on this machine.
- ``counted``: bytes that they send, next to the model.
- ``peaks``: memory that they take, next to one process.
"""
