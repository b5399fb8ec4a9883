"""Attention in plain torch, which torch differentiates: one file per implementation.

- ``reference``: the equations as the paper writes them; tests compare all others with it.
- ``dense``: the split term with all scores in memory.
- ``rows``: ``dense`` for some query rows at a time, within a bound on memory.
- ``edges``: listed pairs only, by the products of ``sparse``.
"""
