"""Checks of the machine, a target, a drafter, and exports as read by servers."""
