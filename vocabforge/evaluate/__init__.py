"""Evaluation: benchmarks, the runner, answer rows, summary figures and reports."""
