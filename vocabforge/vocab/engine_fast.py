"""Byte-level BPE through the fastokens package, on the structures for which it is known to give the same ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..corpus.cut_parts import flat
from ..corpus.cut_patterns import DEEPSEEK, DEEPSEEK_SPLITS, LLAMA3, O200K, QWEN2, QWEN35, TEKKEN
from ..corpus.cutting import CutRule, NoCut
from ..corpus.tokenizer import TextTokenizer
from .engine_parts import NotSuited, groups
from .table import Counts

FAST_GROUP = 1 << 22  # characters; ids come back as 4 bytes each
KNOWN_PATTERNS = ((LLAMA3,), (QWEN2,), (QWEN35,), (O200K,), (TEKKEN,), (*DEEPSEEK_SPLITS, DEEPSEEK))
_MODEL_OPTIONS = (
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
)


class FastEngine:
    """``encode_batch_flat`` and a bincount; long texts go in parts, so that all cores have work."""

    name = "fast"

    def __init__(self, tokenizer: TextTokenizer, rule: CutRule | NoCut, native: Any) -> None:
        self._native = native
        self._rule = rule
        self._vocab_size = tokenizer.vocab_size

    def count(self, texts: Sequence[str], begins: Sequence[bool]) -> Counts:
        """Counts of a batch: (V,). ``begins`` makes no difference to the tokenizers of this engine."""
        counts = np.zeros(self._vocab_size, np.int64)
        for parts, _ in groups(texts, begins, self._rule, FAST_GROUP):
            counts += np.bincount(self._flat(parts)[0], minlength=self._vocab_size)
        return counts

    def rows(self, texts: Sequence[str], begins: Sequence[bool]) -> list[list[int]]:
        """Ids of each text."""
        ids, ends = self._flat(texts)
        return [[int(i) for i in ids[start:stop]] for start, stop in pairwise(ends)]

    def _flat(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """(ids one text after the other, where each text begins and the last ends)."""
        ids, ends = self._native.encode_batch_flat(list(texts))
        return np.frombuffer(ids, "<u4"), np.frombuffer(ends, "<u8").astype(np.int64)


def make(tokenizer: TextTokenizer, rule: CutRule | NoCut, sample: Sequence[str]) -> FastEngine:
    """Suited to byte-level BPE with a known split pattern.

    Raises:
        NotSuited: fastokens is not installed, or the tokenizer's structure is not on the list.
    """
    whole = json.loads(tokenizer.backend.to_str())
    if (reason := unproven(whole)) is not None:
        raise NotSuited(f"fastokens is not known to be exact for {reason}")
    try:
        import fastokens
    except ImportError as error:
        raise NotSuited("fastokens is not installed (pip install fastokens)") from error
    bare = {**whole, "truncation": None, "padding": None, "post_processor": None, "decoder": None}
    try:
        native = fastokens.Tokenizer.from_json_str(json.dumps(bare, ensure_ascii=False))
    except Exception as error:  # whatever the package raises, the plain path is there
        raise NotSuited(f"fastokens refuses the tokenizer: {error}") from error
    return FastEngine(tokenizer, rule, native)


def unproven(whole: Mapping[str, Any]) -> str | None:
    """What in a ``tokenizer.json`` is not on the list of structures on which fastokens is exact; else None.

    On the list: no normaliser or NFC; GPT-2's ByteLevel, alone or behind a Digits that splits single digits,
    or one of :data:`KNOWN_PATTERNS` and ByteLevel; a BPE model over all 256 bytes with any merges. A Split
    with GPT-2's pattern is not: the two disagree about U+180E.
    """
    for step in flat(whole["normalizer"], "normalizers"):
        if step["type"] != "NFC":
            return f"the normalizer {step['type']}"
    if (reason := _unknown_splits(flat(whole["pre_tokenizer"], "pretokenizers"))) is not None:
        return reason
    model = whole["model"]
    if model["type"] != "BPE":
        return f"the model {model['type']}"
    for name in _MODEL_OPTIONS:
        if model.get(name):
            return f"a BPE model with {name}"
    if not all(letter in model["vocab"] for letter in _letters()):
        return "a BPE model that lacks bytes"
    return None


def _unknown_splits(steps: Sequence[Mapping[str, Any]]) -> str | None:
    kinds = [step["type"] for step in steps]
    if not steps or steps[-1]["type"] != "ByteLevel":
        return f"the pre-tokenizer {' + '.join(kinds) or 'none'}"
    last, before = steps[-1], steps[:-1]
    if last["use_regex"]:
        if not before or (kinds == ["Digits", "ByteLevel"] and before[0]["individual_digits"]):
            return None
    elif not last["add_prefix_space"] and all(step["type"] == "Split" for step in before):
        patterns = tuple(step["pattern"].get("Regex") for step in before)
        plain = all(step["behavior"] == "Isolated" and not step["invert"] for step in before)
        if plain and patterns in KNOWN_PATTERNS:
            return None
    return f"the pre-tokenizer {' + '.join(kinds)} as it is set"


def _letters() -> list[str]:
    from tokenizers import pre_tokenizers

    return list(pre_tokenizers.ByteLevel.alphabet())
