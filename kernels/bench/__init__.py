"""Benchmarks of ops, heads and full decode cycles on one device."""
