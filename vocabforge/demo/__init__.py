"""The target, prompts and questions of ``vocabforge demo``, made by ``recipes/tiny/target.py``."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
TARGET = FOLDER / "target"  # a Llama with 2.8 million parameters, bf16
PROMPTS = FOLDER / "prompts.jsonl.xz"  # rows of ``turns``; none is among the questions
QUESTIONS = FOLDER / "question.jsonl"  # Spec-Bench's format
