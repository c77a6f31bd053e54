"""Shapes and growth of draft trees."""
