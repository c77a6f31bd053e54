"""Draft heads: full, static, ranker, low-rank, router, scheduled, context."""
