"""A study's folder with a random target, ready for the stages that decode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.worlds import byte_tokenizer, tiny_target
from vocabforge.core.artifact import write_artifact
from vocabforge.core.config import parse_config
from vocabforge.study.config import StudyConfig, StudyLayout

VOCAB = 270  # rows of the embedding: the tokenizer has 261 tokens
END = 257


def study_config(root: Path, **sections: Any) -> StudyConfig:
    """The least configuration of a study, with sections laid over it."""
    part = {"steps": 1}
    values: dict[str, Any] = {
        "size": "test",
        "output": root,
        "seeds": [3],
        "device": "cpu",
        "mixed_precision": "no",
        "data": {"sources": [{"name": "a"}], "benchmarks": {"spec": 0}},
        "target": {"optim": part, "max_position_embeddings": 256, "sequence_length": 256, "rows": VOCAB},
        "answers": {"train_prompts": 6, "train_tokens": 5, "tokens": 8, "prompt_tokens": 60, "rows": 3},
        "drafters": {
            "aux_layers": [0, 2, 3],
            "reduced_size": 40,
            **dict.fromkeys(("full", "reduced", "alone", "router"), part),
        },
        "check": {"tokens": 4},
    }
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section if isinstance(section, dict) else section
    return parse_config(StudyConfig, values, source="test")


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def question(number: int, text: str, category: str = "qa") -> dict[str, Any]:
    return {"question_id": number, "category": category, "turns": [text, "And then?"]}


def talk(source: str, *texts: str) -> dict[str, Any]:
    """A conversation; user and assistant take turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return {"messages": messages, "source": source}


def make_study(root: Path, **changes: Any) -> StudyLayout:
    """A target and its tokenizer, a few conversations, a set of questions beside the rare one."""
    layout = StudyLayout(root)
    tiny_target(layout.target, vocab_size=VOCAB, eos_token_id=END, **changes)
    byte_tokenizer(layout.target)
    with write_artifact(layout.data, "study-data", {}) as folder:
        stories = [talk("stories", f"Tell of {n}.", f"Once {n}") for n in range(8)]
        chats = [talk("chats", f"Hi {n}", "Hello", f"Who is {n}?", "I") for n in range(3)]
        write_rows(folder / "train.jsonl", [*stories, *chats, talk("rare words", "Ü?", "ß")])
        write_rows(folder / "questions-spec.jsonl", [question(n, f"What is {n}?") for n in (1, 2, 5)])
        write_rows(folder / "questions-rare.jsonl", [question(1, "Ça va? " * 12, "french")])
    return layout
