"""Draft vocabularies: selection, forced ids, schedules, coverage, maps."""
