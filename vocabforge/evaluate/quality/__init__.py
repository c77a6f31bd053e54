"""Output quality: exact match on GSM8K, and HumanEval's tests in a sandbox."""
