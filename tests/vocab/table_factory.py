"""Frequency tables for tests, made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vocabforge.corpus.tokenizer.special_tokens import SpecialTokens
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.vocab.counts.table import FrequencyTable, Tally, save_counts


def make_table(counts: Sequence[int], domains: Mapping[str, Sequence[int]] | None = None, **changes: Any):
    """A table of counts; ``domains`` are counts by name."""
    parts = {name: Tally(np.array(part, dtype=np.int64), 1, 10) for name, part in (domains or {}).items()}
    fields: dict[str, Any] = {
        "counts": np.array(counts, dtype=np.int64),
        "documents": 1,
        "bytes": 10,
        "mode": "corpus",
        "fingerprint": "f",
        "sources": {},
        "special": SpecialTokens(eos=(0,)),
        "domains": parts,
    }
    return FrequencyTable(**{**fields, **changes})


def byte_table(folder: Path, text: str, tokenizer: Path, **domains: str) -> Path:
    """An artefact of the byte tokenizer's counts of a text, or of texts by domain."""
    loaded = load_tokenizer(tokenizer)

    def count(one: str) -> list[int]:
        return np.bincount(loaded.encode(one), minlength=loaded.vocab_size).tolist()

    whole = count(text) if not domains else np.sum([count(one) for one in domains.values()], axis=0).tolist()
    table = make_table(
        whole,
        {name: count(one) for name, one in domains.items()},
        fingerprint=loaded.fingerprint,
        special=SpecialTokens.of(loaded),
        sources={f"{folder.name}.txt": f"digest of {text}{domains}"},
    )
    save_counts(table, folder)
    return folder
