"""Names of ``core/console.py`` under their former module, until all callers are renamed."""

from ..core.console import Name, simple_table
from .report_text import figure_text as figure_cell

__all__ = ["Name", "figure_cell", "simple_table"]
