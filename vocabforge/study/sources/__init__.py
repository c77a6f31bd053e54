"""The study's texts and held-out sources."""
