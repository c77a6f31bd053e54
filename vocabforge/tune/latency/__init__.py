"""Measured times of the parts of a cycle."""
