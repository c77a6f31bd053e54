"""Commands for training data: regenerate, prepare-data, capture."""
