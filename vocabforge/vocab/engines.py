"""Counting engines: ways to count a text's tokens, all with the same counts, and the choice between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..core.errors import UsageError
from ..core.extension import resolve
from ..corpus.cutting import CutRule, NoCut, cut_rule
from ..corpus.tokenizer import TextTokenizer
from .engine_parts import NotSuited, count_rows
from .engine_plain import PlainEngine
from .table import Counts

# Fastest first. Each is made by ``make(tokenizer, rule, sample)``.
ENGINES: dict[str, str] = {
    "fast": "vocabforge.vocab.engine_fast:make",
    "pieces": "vocabforge.vocab.engine_pieces:make",
    "plain": "vocabforge.vocab.engine_plain:make",
}
SAMPLE = 400_000  # characters that are encoded twice before an engine is trusted
SAMPLE_TEXT = 100_000  # characters of one text at most
SAMPLE_PART = 2_000


class CountEngine(Protocol):
    """Counts tokens of batches. Not thread-safe; one process may hold several.

    Attributes:
        name: its row in :data:`ENGINES`.
    """

    name: str

    def count(self, texts: Sequence[str], begins: Sequence[bool]) -> Counts:
        """Counts of a batch: (V,).

        Args:
            texts: any texts without lone surrogates.
            begins: False for a text that continues the one before it, behind a proven cut.
        """
        ...

    def rows(self, texts: Sequence[str], begins: Sequence[bool]) -> list[list[int]]:
        """Ids of each text, by the same path as :meth:`count`."""
        ...


@dataclass(frozen=True, eq=False)
class Choice:
    """The engine to count with.

    Attributes:
        engine: the fastest that is exact.
        reasons: why faster ones are not used, and what is.
        rule: where texts may be cut on their way to it.
    """

    engine: CountEngine
    reasons: list[str]
    rule: CutRule | NoCut


def choose_engine(
    tokenizer: TextTokenizer,
    sample: Sequence[str],
    *,
    only: str | None = None,
    rule: CutRule | NoCut | None = None,
) -> Choice:
    """The fastest engine that is proven for the tokenizer and gives the plain ids on a sample.

    Args:
        tokenizer: whose tokens are counted.
        sample: texts of the corpus; the first 400,000 characters are encoded by both ways.
        only: the name of an engine: this one or an error.
        rule: of :func:`cut_rule`, if it is at hand.

    Raises:
        UsageError: ``only`` is unknown, or its engine is not proven or gives other ids.
    """
    if only is not None:
        resolve(ENGINES, only, "counting engine")
    rule = cut_rule(tokenizer) if rule is None else rule
    texts = _bounded(sample)
    reference = tokenizer.encode_batch(texts)
    reasons: list[str] = []
    for name in ENGINES if only is None else (only,):
        try:
            # Asked for by name, an engine need not be quick on this sample, only right.
            seen = texts if only is None else []
            engine: CountEngine = resolve(ENGINES, name, "counting engine")(tokenizer, rule, seen)
            _check(engine, rule, texts, reference)
        except NotSuited as problem:
            reasons.append(f"engine {name} is not used: {problem}")
            continue
        return Choice(
            engine,
            [*reasons, f"engine {name} counts; its ids are the library's on a sample of {_said(texts)}"],
            rule,
        )
    if only in (None, "plain"):
        # Nothing equals the library but itself, text for text: no cut, no other path.
        uncut = NoCut("cuts failed on the sample")
        return Choice(PlainEngine(tokenizer, uncut), reasons, uncut)
    raise UsageError(
        f"the counting engine {only} cannot be used here",
        got="; ".join(reasons),
        source=tokenizer.source,
        remedy="leave the engine to be chosen, or take plain",
    )


def _said(texts: Sequence[str]) -> str:
    return f"{sum(map(len, texts)):,} characters of {len(texts):,} texts"


def _bounded(sample: Sequence[str]) -> list[str]:
    texts, left = [], SAMPLE
    for text in sample:
        if left <= 0:
            break
        texts.append(text[: min(left, SAMPLE_TEXT)])
        left -= len(texts[-1])
    return texts


def _check(engine: CountEngine, rule: CutRule | NoCut, texts: list[str], reference: list[list[int]]) -> None:
    """Compare an engine with the tokenizers library: ids of whole texts, of texts in parts, and counts.

    Raises:
        NotSuited: they differ.
    """
    whole = [True] * len(texts)
    tries = [(texts, whole)]
    if not isinstance(engine, PlainEngine):
        for text, right, got in zip(texts, reference, engine.rows(texts, whole)):
            _same(right, got, text, "")
    if isinstance(rule, CutRule):
        cut = [rule.parts(text, SAMPLE_PART) for text in texts]
        parts = [part for some in cut for part in some]
        begins = [at == 0 for some in cut for at in range(len(some))]
        rows = iter(engine.rows(parts, begins))
        for text, right, some in zip(texts, reference, cut):
            _same(right, [i for _ in some for i in next(rows)], text, " in parts")
        tries.append((parts, begins))
    for some_texts, flags in tries if not isinstance(engine, PlainEngine) else ():
        counts = engine.count(some_texts, flags)
        if not np.array_equal(counts, count_rows(reference, len(counts))):
            raise NotSuited("ITS COUNTS DIFFER from those of the tokenizers library on the sample")


def _same(right: list[int], got: list[int], text: str, how: str) -> None:
    if right == got:
        return
    at = next((at for at, (a, b) in enumerate(zip(right, got)) if a != b), min(len(right), len(got)))
    raise NotSuited(
        f"ITS IDS DIFFER from those of the tokenizers library on the sample{how}: "
        f"token {at} of the text that begins {text[:40]!r}"
    )
