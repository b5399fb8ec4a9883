"""Labelers of graphs, called with a :class:`~relgraph.Graph`.

- ``edge_type``: the edges, each with its type.
- ``shortest_path``: lengths of shortest paths; ``path_edges``: the edge types along them.
- ``paths``: whole paths as labels.
- ``random_walk``: bins of random-walk probabilities and of personalised PageRank.
- ``degree``, ``node_type``: degrees and types of the two nodes of a pair; virtual nodes.
- ``reversed``: any of these with every edge the other way.
- ``published``: labelers of published models; ``released``: one with the ids of its released code.
"""
