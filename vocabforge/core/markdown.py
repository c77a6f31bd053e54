"""The name of ``console.py`` under its former module, until all callers are renamed."""

from .console import markdown_table

__all__ = ["markdown_table"]
