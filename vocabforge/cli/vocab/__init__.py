"""Commands that count tokens and make draft vocabularies."""
