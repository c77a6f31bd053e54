"""Ops of the decoder: an interface, a reference in PyTorch, and compiled kernels where they are built (kernels/).

Every op takes ``backend`` (see ``backend.py``) and raises ``UsageError`` for shapes, dtypes or devices that do not fit
and for a backend that is missing.
"""
