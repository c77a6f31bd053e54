"""The decoder model that decoding runs."""
