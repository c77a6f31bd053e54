"""Classes loaded by vLLM: draft heads, text proposers, a connector for hidden states."""
