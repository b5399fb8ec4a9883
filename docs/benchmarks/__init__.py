"""Speed and memory of relation-aware attention beside what else computes it; see docs/benchmarks.md."""
