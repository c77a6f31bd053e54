"""Targets, drafters and draft heads."""
