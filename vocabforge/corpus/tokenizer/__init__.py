"""Tokenizers, their fingerprints, and safe places to cut a text."""
