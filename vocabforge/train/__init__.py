"""Drafter training: losses, the TTT unroll, metrics, checkpoints and the loop."""
