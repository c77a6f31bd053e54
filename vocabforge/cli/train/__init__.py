"""Commands that train: train-drafter, train-router, report-training."""
