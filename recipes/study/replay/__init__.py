"""Exact replay of draft vocabularies over finished answers."""
