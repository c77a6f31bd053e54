"""Measured acceptance, prediction and the search."""
