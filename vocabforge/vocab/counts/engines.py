"""Counting engines, which all give the same token counts, and the choice between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, pre_tokenizers

from ...core.errors import UsageError
from ...core.registry import resolve
from ...corpus.tokenizer.cut_parts import (
    DEEPSEEK,
    DEEPSEEK_SPLITS,
    LLAMA3,
    O200K,
    QWEN2,
    QWEN35,
    TEKKEN,
    flat,
)
from ...corpus.tokenizer.cuts import CutRule, NoCut, cut_rule, library_ids
from ...corpus.tokenizer.tokenizer import TextTokenizer
from .table import Counts

PART = 1 << 16  # characters: enough work for one core, little memory
GROUP = 1 << 19  # characters encoded at once; a token of the tokenizers library takes about 100 bytes


class NotSuited(Exception):
    """Error for an engine that is not proven for a tokenizer or not installed; the message is the reason."""


def groups(
    texts: Sequence[str], begins: Sequence[bool], cut: CutRule | None, size: int = GROUP
) -> Iterator[tuple[list[str], list[bool]]]:
    """Yield the texts in order, long texts split at proven cuts, in groups of about ``size`` characters."""
    parts: list[str] = []
    flags: list[bool] = []
    held = 0
    for text, begin in zip(texts, begins, strict=True):
        some = [text] if cut is None else cut.parts(text, PART)
        for at, part in enumerate(some):
            parts.append(part)
            flags.append(begin and at == 0)
            held += len(part)
            if held >= size:
                yield parts, flags
                parts, flags, held = [], [], 0
    if parts:
        yield parts, flags


def count_rows(rows: Sequence[Sequence[int]], vocab_size: int) -> Counts:
    """Count the occurrences of each id: (V,)."""
    if not rows:
        return np.zeros(vocab_size, np.int64)
    ids = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return np.bincount(ids, minlength=vocab_size)


# Fastest first. Each is made by a call with (tokenizer, rule).
ENGINES: dict[str, str] = {
    "fast": "vocabforge.vocab.counts.engines:make_fast",
    "kitoken": "vocabforge.vocab.counts.engine_kitoken:make",
    "plain": "vocabforge.vocab.counts.engines:PlainEngine",
}
SAMPLE = 400_000  # characters that are encoded twice to check an engine
SAMPLE_TEXT = 100_000  # maximum characters of one text
SAMPLE_PART = 2_000


def choose_engine(
    tokenizer: TextTokenizer,
    sample: Sequence[str],
    *,
    only: str | None = None,
    rule: CutRule | NoCut | None = None,
) -> tuple[PlainEngine, list[str]]:
    """Return the fastest engine that is proven for the tokenizer and gives the plain ids on a sample.

    ``only`` restricts the choice to the engine with this name. The second value is why faster engines are
    not used, and which engine is.

    Raises:
        UsageError: ``only`` is unknown, or its engine is not proven or gives other ids.
    """
    if only is not None:
        resolve(ENGINES, only, "counting engine")
    rule = cut_rule(tokenizer) if rule is None else rule
    texts = _bounded(sample)
    reference = tokenizer.encode_batch(texts)
    reasons = [f"texts are encoded whole: {rule.reason}"] if isinstance(rule, NoCut) else []
    for name in ENGINES if only is None else (only,):
        try:
            engine: PlainEngine = resolve(ENGINES, name, "counting engine")(tokenizer, rule)
            _check(engine, texts, reference)
        except NotSuited as problem:
            reasons.append(f"engine {name} is not used: {problem}")
            continue
        seen_in = f"a sample of {sum(map(len, texts)):,} characters of {len(texts):,} texts"
        reasons.append(f"engine {name} counts; its ids are the library's on {seen_in}")
        return engine, reasons
    if only in (None, "plain"):
        # Only the library itself, on uncut texts, is certain to match.
        return PlainEngine(tokenizer, NoCut("cuts failed on the sample")), reasons
    raise UsageError(
        f"the counting engine {only} cannot be used here",
        got="; ".join(reasons),
        source=tokenizer.source,
        remedy="let the engine be chosen automatically, or use plain",
    )


def _bounded(sample: Sequence[str]) -> list[str]:
    texts, left = [], SAMPLE
    for text in sample:
        if left <= 0:
            break
        texts.append(text[: min(left, SAMPLE_TEXT)])
        left -= len(texts[-1])
    return texts


def _check(engine: PlainEngine, texts: list[str], reference: list[list[int]]) -> None:
    """Compare ids and counts of an engine with those of the tokenizers library, on whole and on cut texts.

    Raises:
        NotSuited: the results differ.
    """
    divided = [] if engine.name == PlainEngine.name else [[[text] for text in texts]]
    if engine.cut is not None:
        divided.append([engine.cut.parts(text, SAMPLE_PART) for text in texts])
    for parts_of_texts in divided:
        parts = [part for some in parts_of_texts for part in some]
        begins = [at == 0 for some in parts_of_texts for at in range(len(some))]
        rows = iter(engine.rows(parts, begins))
        for text, right, some in zip(texts, reference, parts_of_texts):
            got = [token for _ in some for token in next(rows)]
            if got != right:
                at = next((at for at, pair in enumerate(zip(right, got)) if len({*pair}) > 1), 0)
                raise NotSuited(
                    "ITS IDS DIFFER from those of the tokenizers library on the sample: "
                    f"token {at} of the text that begins {text[:40]!r}"
                )
        counts = engine.count(parts, begins)
        if not np.array_equal(counts, count_rows(reference, len(counts))):
            raise NotSuited("ITS COUNTS DIFFER from those of the tokenizers library on the sample")


class PlainEngine:
    """``encode_batch_fast`` and a bincount; long texts are split at proven cuts to bound memory.

    Other engines override the methods that they speed up. Not thread-safe; a process may have several.
    """

    name = "plain"

    def __init__(self, tokenizer: TextTokenizer, rule: CutRule | NoCut) -> None:
        self._tokenizer = tokenizer
        self.cut = rule if isinstance(rule, CutRule) else None  # None: texts are encoded whole

    def count(self, texts: Sequence[str], begins: Sequence[bool]) -> Counts:
        """Count a batch: (V,); ``begins`` is False for a text that continues the previous one."""
        counts = np.zeros(self._tokenizer.vocab_size, np.int64)
        for parts, flags in groups(texts, begins, self.cut):
            counts += count_rows(self.rows(parts, flags), len(counts))
        return counts

    def rows(self, texts: Sequence[str], begins: Sequence[bool]) -> list[list[int]]:
        """Return the ids of each text, by the same path as :meth:`count`."""
        if self.cut is None:
            return self._ids(self._tokenizer.backend, texts)
        rows: list[list[int]] = [[] for _ in texts]
        for wanted in (True, False):
            chosen = [at for at, begin in enumerate(begins) if bool(begin) is wanted]
            for at, ids in zip(chosen, self.cut.encode([texts[at] for at in chosen], wanted, self._ids)):
                rows[at] = ids
        return rows

    def _ids(self, backend: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        return library_ids(backend, texts)


FAST_GROUP = 1 << 22  # characters; the engine returns 4 bytes per id
KNOWN_PATTERNS = ((LLAMA3,), (QWEN2,), (QWEN35,), (O200K,), (TEKKEN,), (*DEEPSEEK_SPLITS, DEEPSEEK))
_MODEL_OPTIONS = (
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
)


class FastEngine(PlainEngine):
    """``encode_batch_flat`` and a bincount; long texts are split to keep all cores busy."""

    name = "fast"

    def __init__(self, tokenizer: TextTokenizer, rule: CutRule | NoCut, native: Any) -> None:
        super().__init__(tokenizer, rule)
        self._native = native

    def count(self, texts: Sequence[str], begins: Sequence[bool]) -> Counts:
        """Count a batch: (V,). ``begins`` has no effect for the tokenizers of this engine."""
        counts = np.zeros(self._tokenizer.vocab_size, np.int64)
        for parts, _ in groups(texts, begins, self.cut, FAST_GROUP):
            counts += np.bincount(self._flat(parts)[0], minlength=len(counts))
        return counts

    def rows(self, texts: Sequence[str], begins: Sequence[bool]) -> list[list[int]]:
        """Return the ids of each text."""
        ids, ends = self._flat(texts)
        return [[int(i) for i in ids[start:stop]] for start, stop in pairwise(ends)]

    def _flat(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """Return (concatenated ids, offsets of the texts and of the end)."""
        ids, ends = self._native.encode_batch_flat(list(texts))
        return np.frombuffer(ids, "<u4"), np.frombuffer(ends, "<u8").astype(np.int64)


def make_fast(tokenizer: TextTokenizer, rule: CutRule | NoCut) -> FastEngine:
    """Create the engine, which supports byte-level BPE with a known split pattern.

    Raises:
        NotSuited: fastokens is not installed, or the tokenizer's structure is not supported.
    """
    if (reason := unproven(tokenizer)) is not None:
        raise NotSuited(f"fastokens is not known to be exact for {reason}")
    try:
        import fastokens
    except ImportError as error:
        raise NotSuited("fastokens is not installed (pip install fastokens)") from error
    try:
        native = fastokens.Tokenizer.from_json_str(tokenizer.backend.to_str())
    except Exception as error:  # the plain engine replaces it, whatever the error
        raise NotSuited(f"fastokens rejects the tokenizer: {error}") from error
    return FastEngine(tokenizer, rule, native)


def unproven(tokenizer: TextTokenizer) -> str | None:
    """Return the part of a tokenizer for which fastokens is not known to be exact, or None.

    Supported: no normaliser or NFC; GPT-2's ByteLevel, alone or after a Digits that splits single digits, or
    one of :data:`KNOWN_PATTERNS` and ByteLevel; a BPE model over all 256 bytes. A Split with GPT-2's pattern
    is not supported: the two libraries disagree about U+180E.
    """
    whole = tokenizer.structure
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
    letters = pre_tokenizers.ByteLevel.alphabet()
    if any(tokenizer.backend.model.token_to_id(letter) is None for letter in letters):
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
