"""Commands that decode: generate, eval, tune, report."""
