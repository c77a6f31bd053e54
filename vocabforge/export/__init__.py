"""Drafters in the forms that decoders and servers read."""
