"""Labelers of graphs, called with a :class:`~relgraph.Graph`.

- ``edge_type``: the edges, each with its type.
- ``shortest_path``: lengths of shortest paths.
- ``paths``: whole paths as labels.
- ``node_type``: the types of the two nodes of a pair.
"""
