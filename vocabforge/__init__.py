"""VocabForge: drafter training and vocabulary preparation for speculative decoding."""

__version__ = "0.1.0"
