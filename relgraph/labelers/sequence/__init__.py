"""Labelers of sequences, grids and segments, called with a length.

- ``distance``: clipped distance, windows; the base of labelers by distance.
- ``buckets``: distances in buckets, by the rules of T5 and DeBERTa.
- ``grid``: offsets between the cells of a grid, by row and by column.
- ``difference``: the base of labelers by the difference of two positions.
- ``segments``: pairs of segments.
- ``function``: any vectorised function of two positions.
"""
