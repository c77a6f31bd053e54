"""What drafts: EAGLE, Medusa, draft models, n-grams, early exit."""
