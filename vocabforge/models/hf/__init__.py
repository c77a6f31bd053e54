"""Any Transformers causal language model as a decoding target, run with its own code."""
