"""The lean decoder model."""
