"""A name of ``plots.py`` under its former module, until all callers are renamed."""

from .plots import standalone

__all__ = ["standalone"]
