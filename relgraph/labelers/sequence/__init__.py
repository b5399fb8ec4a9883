"""Labelers of sequences, grids and segments, called with a length.

- ``distance``: clipped and bucketed distance, windows; the base of labelers by distance.
- ``grid``: offsets between the cells of a grid, by row and by column.
- ``segments``: pairs of segments.
- ``function``: any vectorised function of two positions.
"""
