"""Compare outputs with plain decoding, and judge whether rounding explains a difference."""
