"""Evaluate OpenAI-compatible servers: send requests, read acceptance counters, start and stop servers."""
