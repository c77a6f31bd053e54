"""What a run shows: held-out figures, live acceptance, trackers and the report."""
