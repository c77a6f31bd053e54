"""Any causal language model of Transformers as a decoding target, run by its own code."""
