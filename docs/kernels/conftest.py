"""These modules need Triton as a compiler, so tests load them in a separate process."""

collect_ignore = ["configurations.py", "toy.py"]
