"""Accepted lengths on prompts and during training, and their upper bounds."""
