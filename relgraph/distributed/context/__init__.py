"""Context parallelism: sequences split over processes by rows.

- ``agreement``: compares the call among processes.
- ``whole``: what all processes hold together; checks a whole call.
- ``gathered``: gathers keys and values, and lets each process's rows attend to them.
- ``calls``: runs an attention call within a region: checks it, compares it among processes, answers it.
- ``recompute``: lets checkpointing compute forward again in its region.
- ``region``: the block of code within which layers and functions do this.
"""
