"""Benchmarks: every figure is a ratio to the plain way, measured in the same run by turns."""
