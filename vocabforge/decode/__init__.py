"""The decoder: draft tree, verification, proposers and the engine."""
