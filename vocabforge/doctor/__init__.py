"""Checks of the machine, a target, a drafter, and what servers make of an export."""
