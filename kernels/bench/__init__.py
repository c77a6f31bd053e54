"""Times of ops, heads and whole cycles on one device."""
