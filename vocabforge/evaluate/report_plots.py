"""Names of ``plots.py`` under their former module, until all callers are renamed."""

from .plots import Bar, Trace, bar_rows, trace_lines

__all__ = ["Bar", "Trace", "bar_rows", "trace_lines"]
