"""Checks of arguments and the words of their errors; every floor uses them.

- ``check``: return the argument, or raise an error that names it, what was wanted and what came.
- ``hints``: what an error suggests when an argument is of another type.
- ``brief``: values in a few words, for errors and ``repr``.
- ``sharding``: refuse tensors that hold only one rank's part.
"""
