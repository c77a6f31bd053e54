"""``vocabforge report A B C``: compare evaluations if they are comparable."""
