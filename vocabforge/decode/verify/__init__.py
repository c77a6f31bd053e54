"""Which drafted tokens are accepted."""
