"""Spherical k-means over LM-head rows."""
