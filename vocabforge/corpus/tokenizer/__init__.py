"""Tokenizers, their fingerprints, and where a text may be cut."""
