"""The section ``data`` of a study's configuration: sources of texts, tokenizer, sets of questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ..core.config import Positive, StrictModel

SourceKind = Literal["chats", "alpaca", "sums", "code", "stories", "text", "verses", "archive", "sample"]


class SourceConfig(StrictModel):
    """One source of texts.

    Attributes:
        name: for reports and file names.
        path: file below ``data.root``; None for the built-in sample.
        kind: how it is read and turned into conversations (``study/sources.py``).
        language: English name of its language, for the prompt of plain texts.
        role: ``train``; ``heldout``: never learnt from, for held-out loss and coverage; ``rare``: held out too, its
            beginnings are prompts of the set of questions ``rare``.
        documents: at most so many conversations; None: all.
        members: of an archive, the files that are read (globs).
        task: what is asked about a passage of plain text (kinds ``text``, ``verses``, ``archive``): to ``continue`` it,
            or to ``quote`` from it, with shorter passages.
    """

    name: str
    path: Path | None = None
    kind: SourceKind
    language: str = "English"
    role: Literal["train", "heldout", "rare"] = "train"
    documents: Positive | None = None
    members: tuple[str, ...] = ()
    task: Literal["continue", "quote"] = "continue"


class StudyDataConfig(StrictModel):
    """What is learnt from, and what is asked.

    Attributes:
        root: folder of the files; None where only the built-in sample is used.
        tokenizer: folder of tokenizer.json(.xz) and tokenizer_config.json below ``root``; None makes a small one.
        tokenizer_size: entries of a tokenizer that is made.
        sources: see above; held-out text is held out by source.
        limits: conversations of a source at most, by its name: what another size of the study asks of it.
        benchmarks: sets of questions: a named benchmark (``evaluate.benchmarks``) and how many of its questions, evenly
            spread (0: all of them).
        rare_questions: of a category (a language, or code) of the set ``rare`` at most.
        overlap: a training conversation that shares this many words in a row with a question or a held-out text is
            left out.
        answer_characters: plain text is cut into answers of about this length.
    """

    root: Path | None = None
    tokenizer: Path | None = None
    tokenizer_size: Annotated[int, Field(ge=300)] = 1024
    sources: Annotated[tuple[SourceConfig, ...], Field(min_length=1)]
    limits: dict[str, Positive] = Field(default_factory=dict)
    benchmarks: dict[str, Annotated[int, Field(ge=0)]]
    rare_questions: Positive = 36
    overlap: Positive = 24
    answer_characters: Positive = 900

    @property
    def held_out(self) -> list[SourceConfig]:
        """Sources that nothing is learnt from."""
        return [source for source in self.sources if source.role != "train"]
