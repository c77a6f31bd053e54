"""The vocabulary study: every draft vocabulary side by side, at a real vocabulary size, in one decoder."""
