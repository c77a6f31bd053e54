"""The search for the fastest draft head and draft tree, measured on this machine."""
