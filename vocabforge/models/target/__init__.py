"""The target as training sees it."""
