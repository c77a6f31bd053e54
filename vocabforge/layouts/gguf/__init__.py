"""GGUF files of EAGLE-3 drafters and their targets for llama.cpp."""
