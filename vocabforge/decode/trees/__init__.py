"""Which nodes a draft tree has."""
