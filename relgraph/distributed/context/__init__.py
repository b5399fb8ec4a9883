"""Context parallelism: sequences split over processes by rows.

- ``agreement``: compares the call among processes.
- ``slices``: cuts a call to some rows and some keys.
- ``gathered``, ``ring``, ``heads``: one method each.
- ``calls``: runs an attention call within a region: checks it, compares it among processes, takes a method.
- ``region``: the block of code within which layers and functions do this.
"""
