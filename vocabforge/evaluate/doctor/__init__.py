"""``vocabforge doctor``: does this machine, this target and this drafter work, and if not, what to do."""
