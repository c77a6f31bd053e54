"""Target models and their files."""
