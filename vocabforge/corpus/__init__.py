"""Tokenizers, text and conversation sources, chat rendering with loss masks, packing."""
