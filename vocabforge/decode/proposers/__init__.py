"""Proposers: EAGLE, Medusa, draft models, n-grams, early exit."""
