"""Comparison of two vocabularies."""
