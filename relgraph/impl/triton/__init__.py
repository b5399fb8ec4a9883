"""Fused kernels in Triton: ``impl="triton"``.

In the order in which data meets them:

- ``limits``: requirements and limits of the kernels, which the rule reads.
- ``attend``: all pairs: tables to B and C, the primitive, P back to the output.
- ``virtual``: columns by distance, for labels that are a function of the distance.
- ``tiling``: tile sizes, warps and stages by head size, dtype and GPU.
- ``tables``: the terms of tables: B and C before the kernels, the value term after them, and their gradients.
- ``launch``: strides and arguments of each launch.
- ``tile_map``, ``tile_ids``: which tiles of pairs a kernel visits, and the ids of those with several labels.
- ``attention_kernels``, ``attention_pieces``: the kernels over tiles, and the code that they share. They sum up P.
- ``edges``, ``edge_kernels``: launches and kernels for listed pairs only.
"""
