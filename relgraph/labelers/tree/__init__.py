"""Labelers of trees, called with a :class:`~relgraph.Graph` whose edges make a forest.

- ``walk``: depths, ancestors and lowest common ancestors, which the other modules use.
- ``relation``: parent, child, sibling and so on; steps up and down.
- ``paths``: the whole path between two nodes as a label.
- ``dependency``: the relations of Universal Dependencies.
"""
