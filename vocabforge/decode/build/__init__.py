"""From folders and settings to decoding methods."""
