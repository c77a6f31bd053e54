"""Drafting with another vocabulary: TLI, SLEM, SLRS."""
