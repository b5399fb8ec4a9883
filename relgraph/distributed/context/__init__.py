"""Context parallelism: sequences split over processes by rows.

- ``agreement``: whether all processes mean the same call.
- ``slices``: a call cut to some rows and some keys.
- ``gathered``, ``ring``, ``heads``: one method each.
- ``calls``: what a call of attention does within a region: it checks, agrees, takes a method.
- ``region``: the block of code within which layers and functions do this.
"""
