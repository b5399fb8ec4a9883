"""Edges-only attention by sparse products, in plain torch: ``impl="edges"``.

- ``attend``: scores, softmax and output over listed pairs.
- ``sparse``: the three ops that ``attend`` uses, each the backward of another.
"""
