"""Whether outputs equal plain decoding's, and whether rounding explains a difference."""
