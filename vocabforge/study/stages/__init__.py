"""The stages of a study, one module each."""
