"""String-level rejection sampling: drafts of another vocabulary, verified with their own distribution."""
