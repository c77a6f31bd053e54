"""Token statistics and draft vocabularies; the only owner of d2t and t2d."""
