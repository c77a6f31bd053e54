"""Commands that decode, measure and export with drafters."""
