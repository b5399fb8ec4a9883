"""Attention by kernels in C++, compiled for the kind of processor that a wheel is for, or for this very one.

- ``attend``: a call by the kernels, forward and backward.
- ``edges``: a call over listed pairs only.
- ``prepared``: a small call whose struct lacks nothing but addresses.
- ``sort``, ``sort.cpp``: listed pairs in the order of query rows, for every implementation.
- ``hash.cpp``: numbers by which a change of labels or edges shows.
- ``structs``: the structs that both languages share; ``problem`` fills them from tensors; ``check`` checks the values.
- ``build``: loads the library that fits this processor, or says why there is none; ``compiler`` makes one, and
  ``packaging`` calls it when relgraph is installed.
- ``found``: functions that the kernels take from torch, products of matrices and threads; ``probe.cpp`` tries them.
- ``attention.cpp``: how threads share the blocks; ``block.h``: a block of query rows; ``room.h``: its place in memory.
- ``labels.h``: labels of one row; ``pairs.h``: its masks and dropout; ``dropout.h``: random numbers by position;
  ``products.h``: products of matrices; ``loops.h``: loops over a row; ``problem.h``: the structs.
- ``edges.cpp``, ``edges.h``: listed pairs only; ``query.h``: a query and its pairs; ``gathered.h``: products with rows
  that are gathered; ``tasks.h``: tasks over threads;
  ``boundary.h``: exceptions become numbers before they reach Python.
"""
