"""Training of rankers, low-rank heads and routers."""
