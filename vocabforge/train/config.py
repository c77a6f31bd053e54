"""Configuration of ``train-drafter``; recipes/*.yaml supply the values, defaults stand here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..core.config import StrictModel

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class DataConfig(StrictModel):
    """What the drafter learns from.

    Attributes:
        train: files or folders (.txt, .jsonl, .json; .gz and .xz too): texts or conversations.
        heldout: the same for evaluation; empty: the last ``heldout_documents`` of ``train`` are set aside.
        heldout_documents: documents set aside when ``heldout`` is empty.
        heldout_prompts: held-out prompts written in Spec-Bench format for ``vocabforge eval``.
        prompt_tokens: prompt length, in tokens, of those that come from plain text.
        text_field: key of the text (or conversation) in JSON rows; None finds the usual ones.
        text_unit: what one document of a plain text file is.
        separator: literal between documents of a text file; overrides ``text_unit``.
        sequence_length: T, tokens of a packed row.
        append_eos: end every plain text document with the tokenizer's EOS.
        strict: the first unreadable line is an error instead of being counted and skipped.
    """

    train: list[Path] = Field(min_length=1)
    heldout: tuple[Path, ...] = ()
    heldout_documents: Positive = 64
    heldout_prompts: Positive = 40
    prompt_tokens: Positive = 32
    text_field: str | None = None
    text_unit: Literal["file", "line", "paragraph"] = "file"
    separator: str | None = None
    sequence_length: Annotated[int, Field(ge=8, le=131072)] = 2048
    append_eos: bool = True
    strict: bool = False


class DrafterConfig(StrictModel):
    """The drafter's architecture; what is left out is taken from the target.

    Attributes:
        kind: row of the drafter table.
        head: ``target`` shares the target's frozen head; ``own`` trains a head that starts from its rows.
        vocab: subset artefact: an own head over these tokens only (EAGLE-3's reduced vocabulary).
        aux_layers: target layers (0-based outputs) read by ``fc``; default 1, n//2 - 1, n - 4.
    """

    kind: Literal["eagle3"] = "eagle3"
    head: Literal["target", "own"] = "target"
    vocab: Path | None = None
    aux_layers: Annotated[list[int], Field(min_length=1)] | None = None
    intermediate_size: Positive | None = None
    num_heads: Positive | None = None
    num_kv_heads: Positive | None = None

    @model_validator(mode="after")
    def _vocab_needs_own_head(self) -> DrafterConfig:
        if self.vocab is not None and self.head != "own":
            raise ValueError(
                "drafter.vocab needs drafter.head: own (a full drafter is restricted by export --vocab)"
            )
        return self


class TTTConfig(StrictModel):
    """Training-time test: ``steps`` K and the weight 0.8^k of METHODS section 8.

    Attributes:
        warmup_fraction: share of training that uses one step only, before K steps.
    """

    steps: Positive = 7
    decay: Annotated[float, Field(gt=0.0, le=1.0)] = 0.8
    warmup_fraction: Fraction = 0.0


class OptimConfig(StrictModel):
    """AdamW with warm-up and cosine decay.

    Attributes:
        steps: optimiser steps.
        batch_size: packed rows a step.
        min_lr_fraction: where the cosine ends, as a share of ``lr``.
    """

    steps: Positive
    batch_size: Positive = 8
    lr: Annotated[float, Field(gt=0.0)] = 1e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: Annotated[float, Field(gt=0.0)] = 0.5
    warmup_fraction: Fraction = 0.015
    min_lr_fraction: Fraction = 0.0


class RunConfig(StrictModel):
    """Bookkeeping of a run: how often it looks, writes and keeps.

    Attributes:
        mixed_precision: ``auto`` picks bf16 where the device is fast at it, else fp32.
        keep: checkpoints kept.
        capture_memory_gb: memory for target states that are kept between epochs, in GiB.
    """

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    device: str = "auto"
    mixed_precision: Literal["auto", "no", "bf16"] = "auto"
    threads: Positive | None = None
    log_every: Positive = 20
    eval_every: Positive = 200
    eval_rows: Positive = 64
    checkpoint_every: Positive = 200
    keep: Positive = 2
    capture_memory_gb: Annotated[float, Field(ge=0.0)] = 2.0


class TrainConfig(StrictModel):
    """Everything ``train-drafter`` needs; see the sections.

    Attributes:
        target: Hugging Face folder of the target.
        tokenizer: folder or tokenizer.json; default: the target's folder.
        output: run folder; gets ``drafter/``, ``checkpoints/``, ``metrics.jsonl``.
    """

    target: Path
    tokenizer: Path | None = None
    output: Path
    data: DataConfig
    drafter: DrafterConfig = DrafterConfig()
    ttt: TTTConfig = TTTConfig()
    optim: OptimConfig
    run: RunConfig = RunConfig()
