"""Folders as each server reads them: which tensors it takes, which layers it captures, what it would compute."""
