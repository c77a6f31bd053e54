"""``vocabforge report A B C``: evaluations held against each other, where they can be."""
