"""Accepted lengths: measured on prompts, while training, and their ceilings."""
