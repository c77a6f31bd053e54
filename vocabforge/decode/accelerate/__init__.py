"""CUDA graphs and compiled passes."""
