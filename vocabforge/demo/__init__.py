"""Synthetic texts and the tiny target of the demo."""
