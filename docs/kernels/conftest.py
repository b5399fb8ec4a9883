"""These need Triton, and as a compiler: tests load them in a process of its own."""

collect_ignore = ["configurations.py", "toy.py"]
