"""The entry point of the group ``vllm.general_plugins``: it tells vLLM in every process where our classes are."""

from __future__ import annotations

# A name that ends in Eagle3 is the architecture that vLLM looks up, unchanged.
ARCHITECTURES = {
    "VocabForgeLlamaEagle3": "vocabforge.serve.vllm.eagle3:VocabForgeLlamaEagle3",
    "VocabForgeQwen3Eagle3": "vocabforge.serve.vllm.eagle3:VocabForgeQwen3Eagle3",
}


def register() -> None:
    """Name the architectures to vLLM; a class is imported where a drafter has it."""
    from vllm import ModelRegistry

    for name, place in ARCHITECTURES.items():
        ModelRegistry.register_model(name, place)
