"""Benchmarks as data, the runner, answer rows, summary figures and the report."""
