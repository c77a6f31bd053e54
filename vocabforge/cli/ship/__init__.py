"""Commands that prepare a drafter for a server: export, revocab, doctor."""
