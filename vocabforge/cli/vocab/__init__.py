"""Vocabulary commands: count-freq, merge-freq, select-vocab, coverage, cluster-vocab, compare-vocab."""
