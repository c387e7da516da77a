"""Benchmarks: every figure is a ratio to a plain solution, measured alternately in the same run."""
