"""Strategies for several processes: replicated, FSDP2, DeepSpeed."""
