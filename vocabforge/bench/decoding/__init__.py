"""Decoding speed of every method, beside plain decoding and transformers."""
