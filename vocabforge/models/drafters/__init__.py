"""Drafters and their files."""
