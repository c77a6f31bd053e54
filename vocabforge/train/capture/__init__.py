"""Capture of the target's hidden states for drafter training."""
