"""Triton kernels, for attention over all pairs and over edges alone; loaded when impl="triton" is first used."""
