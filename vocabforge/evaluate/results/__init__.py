"""The schema of results, answer rows, figures and intervals."""
