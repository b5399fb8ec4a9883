"""The split term in blocks of query rows, in plain torch, for the caches of a CPU: ``impl="chunked"``.

Other devices, and calls that the split term does not support, get rows of ``dense`` (``relgraph.impl.eager.rows``).

In the order in which data meets them:

- ``attend``: tables to B and C, the primitive, P back to the output.
- ``blocks``: forward and backward of the primitive over blocks.
- ``groups``: small graphs of a packed batch, computed together as a padded batch.
- ``parts``: which ids the blocks of a unit carry.
- ``rows``: one block: scores, weights and their gradients. Tables are gathered here through ``ids``.
- ``ids``: gather a table over the pairs of a block, scatter pairs into sums by label.
- ``tiles``: the same for keys of a block whose labels are of one kind.
"""
