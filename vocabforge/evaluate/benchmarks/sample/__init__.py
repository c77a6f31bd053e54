"""Synthetic texts of several kinds, generated from a seed."""
