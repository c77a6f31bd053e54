"""Conversations, chat templates and loss masks."""
