"""Fused kernels in Triton: ``impl="triton"``.

In the order in which data meets them:

- ``limits``: requirements and limits of the kernels; read by the rule.
- ``selfcheck``: compares the kernels with ``reference`` before they are first used on a device; asked by the rule.
- ``attend``: all pairs: tables to B and C, the primitive, P back to the output.
- ``virtual``: columns by distance, for labels that are a function of the distance.
- ``tiling``: tile sizes, warps and stages by head size, dtype and GPU.
- ``tables``: what tables add: B and C before the kernels, the value term after them, and their gradients.
- ``outer``: the same for tables with a batch axis, outside of the primitive.
- ``launch``: strides and arguments of each launch.
- ``tile_map``, ``tile_ids``: which tiles of pairs a kernel visits, and the ids of those with several labels.
- ``capture``: what a call may do while a CUDA graph is recorded.
- ``attention_kernels``, ``attention_pieces``: the kernels over tiles, and what they have in common. P is summed here.
- ``vector_kernels``: what backward needs of each query row before its kernels start.
- ``edges``, ``edge_kernels``: the same for listed pairs only.
"""
