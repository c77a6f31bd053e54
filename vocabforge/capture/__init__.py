"""Hidden states of the target for drafter training."""
