"""Machine translation with relative positions, as in Shaw, Uszkoreit and Vaswani 2018, on relgraph's core.

Run it as ``python -m examples.translation COMMAND`` from the root of the repository; ``--help`` lists the commands.
"""
