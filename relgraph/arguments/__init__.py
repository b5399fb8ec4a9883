"""Checks of arguments and the wording of their errors; used by the whole package.

- ``check``: return the argument, or raise an error that names it, what it must be and what it was.
- ``hints``: what an error suggests for an argument of the wrong type.
- ``brief``: short texts of values, for errors and ``repr``.
- ``public``: which names of a module are public.
- ``sharding``: refuse tensors that hold only one rank's part.
"""
