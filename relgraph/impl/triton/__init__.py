"""Fused kernels in Triton: ``impl="triton"``.

In the order in which data meets them:

- ``limits``: requirements and limits of the kernels; read by the rule.
- ``selfcheck``: compares the kernels with ``reference`` before they are first used on a device; asked by the rule.
- ``attend``: all pairs: tables to B and C, the primitive, P back to the output.
- ``virtual``: columns by distance, for labels that are a function of the distance.
- ``tiling``: tile sizes, warps and stages by head size, dtype and GPU.
- ``launch``: strides and arguments of each launch.
- ``tile_map``, ``tile_ids``: which tiles of pairs a kernel visits, and the ids of those with several labels.
- ``attention_kernels``: the kernels over tiles. P is summed here.
- ``edges``, ``edge_kernels``: the same for listed pairs only.
"""
