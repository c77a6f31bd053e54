"""Schema of results, answer rows, figures and intervals."""
