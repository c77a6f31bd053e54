"""Entry point in the group ``vllm.general_plugins``: registers our classes in every vLLM process."""

from __future__ import annotations

# vLLM looks up architecture names ending in Eagle3 unchanged.
ARCHITECTURES = {
    "VocabForgeLlamaEagle3": "vocabforge.serve.vllm.eagle3:VocabForgeLlamaEagle3",
    "VocabForgeQwen3Eagle3": "vocabforge.serve.vllm.eagle3:VocabForgeQwen3Eagle3",
}


def register() -> None:
    """Register the architectures with vLLM; a class is imported only when a drafter uses it."""
    from vllm import ModelRegistry

    for name, place in ARCHITECTURES.items():
        ModelRegistry.register_model(name, place)
