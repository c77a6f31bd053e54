"""The study's tables, plots and page."""
