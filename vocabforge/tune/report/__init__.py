"""What a tuning run shows."""
