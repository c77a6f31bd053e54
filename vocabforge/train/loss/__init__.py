"""Losses over the vocabulary."""
