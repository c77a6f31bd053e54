"""A tiny target trained on the demo's texts."""
