"""Token counts: engines, runs, tables, mixtures."""
