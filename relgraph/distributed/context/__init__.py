"""Context parallelism: sequences split over processes by rows.

- ``agreement``: compares the call among processes.
- ``slices``: checks a whole call, and cuts it to some rows and some keys.
- ``masks``: what a process was given of a mask.
- ``gathered``, ``ring``, ``heads``: one method each.
- ``calls``: runs an attention call within a region: checks it, compares it among processes, takes a method.
- ``recompute``: lets checkpointing compute forward again in its region.
- ``region``: the block of code within which layers and functions do this.
"""
