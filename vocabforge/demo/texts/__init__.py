"""Synthetic texts of several kinds, from a seed."""
