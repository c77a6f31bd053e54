"""Commands that make training data: regenerate, prepare-data, capture."""
