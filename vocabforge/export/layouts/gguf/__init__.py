"""EAGLE-3 drafters, and their targets, as llama.cpp reads them: GGUF files."""
