"""Commands that prepare data and train drafters."""
