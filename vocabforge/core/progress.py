"""The names of ``console.py`` under their former module, until all callers are renamed."""

from .console import ProgressBar, console, human_rate, say

__all__ = ["ProgressBar", "console", "human_rate", "say"]
