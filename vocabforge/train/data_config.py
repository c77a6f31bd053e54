"""Configuration of the rows that a drafter learns from: the section ``data`` of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ..core.config import Positive, StrictModel


class DataConfig(StrictModel):
    """What the drafter learns from.

    Attributes:
        train: files, folders, globs or hub:NAME data sets (.txt, .jsonl, .json, .parquet; .gz, .xz and .zst
            too): texts or conversations.
        heldout: the same for evaluation; empty: the last ``heldout_documents`` of ``train`` are set aside.
        prepared: folder made by ``vocabforge prepare-data``; then ``train`` and ``heldout`` are empty, and
            all keys that decide the rows are those of that folder.
        cache: where prepared data are kept and found again by their content; None is OUTPUT/data.
        heldout_documents: documents set aside when ``heldout`` is empty.
        heldout_prompts: held-out prompts written in Spec-Bench format for ``vocabforge eval``.
        prompt_tokens: prompt length, in tokens, of those that come from plain text.
        text_field: key of the text (or conversation) in JSON rows; None finds the usual ones.
        text_unit: what one document of a plain text file is.
        separator: literal between documents of a text file; overrides ``text_unit``.
        sequence_length: T, tokens of a packed row.
        overlong: what becomes of a document longer than a row: ``cut`` keeps its first T tokens, ``split``
            makes documents of T tokens of it (each but the first without what came before), ``skip`` leaves
            it out. All are counted and reported.
        append_eos: end every plain text document with the tokenizer's EOS.
        thinking: ``keep`` learns thinking blocks, ``mask`` has them in the context only, ``drop`` takes them
            out and tells the template not to think.
        tools: ``keep`` renders tool lists, calls and results and learns the calls; ``skip`` leaves such
            conversations out.
        answers: ``all`` learns every answer in one rendering, ``last`` the answer to the last question,
            ``each`` makes a document of every question with all that came before it.
        thinking_tags: what opens and closes a thinking block within a content.
        template: further variables of the chat template, such as ``date_string``.
        strict: the first unreadable line is an error instead of being counted and skipped.
    """

    train: tuple[Path, ...] = ()
    heldout: tuple[Path, ...] = ()
    prepared: Path | None = None
    cache: Path | None = None
    heldout_documents: Positive = 64
    heldout_prompts: Positive = 40
    prompt_tokens: Positive = 32
    text_field: str | None = None
    text_unit: Literal["file", "line", "paragraph"] = "file"
    separator: str | None = None
    sequence_length: Annotated[int, Field(ge=8, le=131072)] = 2048
    overlong: Literal["cut", "split", "skip"] = "cut"
    append_eos: bool = True
    thinking: Literal["keep", "mask", "drop"] = "keep"
    tools: Literal["keep", "skip"] = "keep"
    answers: Literal["all", "last", "each"] = "all"
    thinking_tags: tuple[str, str] = ("<think>", "</think>")
    template: dict[str, Any] = Field(default_factory=dict)
    strict: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        if self.prepared is None and not self.train:
            raise ValueError("data.train is empty: give files, or data.prepared")
        if self.prepared is not None and (self.train or self.heldout):
            raise ValueError("data.prepared holds the rows already: leave data.train and data.heldout out")
        return self
