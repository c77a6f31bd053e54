"""Ops of the decoder: an interface, a reference in PyTorch, and compiled kernels where they are built (kernels/)."""
