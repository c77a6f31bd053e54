"""Benchmarks of counting, training, decoding, draft heads and kernels."""
