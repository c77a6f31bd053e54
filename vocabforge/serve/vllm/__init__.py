"""Classes that vLLM loads: draft heads, proposers of text, a connector for hidden states."""
