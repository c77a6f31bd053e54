"""Evaluations of OpenAI-compatible servers: asking, counting what they accept, starting and stopping them."""
