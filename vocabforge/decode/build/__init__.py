"""Construction of decoding methods from folders and settings."""
