"""Attention of the training-time test."""
