"""Benchmarks: speed and memory of relation-aware attention and its alternatives; see docs/benchmarks.md."""
