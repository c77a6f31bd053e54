"""Decoder ops: a common interface, a PyTorch reference, and optional compiled kernels (``kernels/``).

Every op takes ``backend`` (see ``backend.py``) and raises ``UsageError`` for unsupported shapes, dtypes or
devices and for an unavailable backend.
"""
