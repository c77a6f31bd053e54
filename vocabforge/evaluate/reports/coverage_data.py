"""Compute the figures of a coverage study: the share of each text that a ranking covers, by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.console import say
from ...core.errors import DataError, UsageError
from ...corpus.tokenizer.tokenizer import check_fingerprint
from ...vocab.counts.mixtures import TablePart
from ...vocab.subset.coverage import (
    coverage_at,
    curve_sizes,
    knee,
    rank_all,
    size_ladder,
    unseen_mass,
    unseen_share,
)
from ...vocab.subset.select import Ids
from ...vocab.subset.subset import VocabSubset

RESULTS_VERSION = 1
COUNTED, HELD_OUT = "counted", "held out"


@dataclass(frozen=True, eq=False)
class Text:
    """Counts (V,) over which coverage is measured."""

    name: str
    role: str  # ``counted`` (the ranking was made from a table that includes these counts) or ``held out``
    part: bool  # whether it is a domain of a table
    counts: Ids
    mixed: bool  # whether the counts are those of a mixture


def measure_coverage(
    counts: TablePart,
    heldout: Sequence[TablePart] = (),
    vocabs: Mapping[str, VocabSubset] | None = None,
    *,
    sizes: Sequence[int] = (),
) -> dict[str, Any]:
    """Compute ``coverage.json`` without provenance.

    Args:
        counts: table from which the ranking is made, with end and control tokens first, as in
            ``select-vocab``.
        sizes: rows of the tables; by default powers of two and the steps between.

    Raises:
        MismatchError: a table or draft vocabulary has another tokenizer.
        DataError: a table is empty.
        UsageError: two texts have the same name, or a size exceeds the vocabulary.
    """
    vocabs = vocabs or {}
    table = counts.table
    for what, fingerprint in [
        *((f"the held-out table {part.name}", part.table.fingerprint) for part in heldout),
        *((f"the draft vocabulary {name}", subset.fingerprint) for name, subset in vocabs.items()),
    ]:
        check_fingerprint(
            table.fingerprint, fingerprint, expected_from=f"the frequency table {counts.name}", got_from=what
        )
    _warn_of_leaks(counts, heldout)
    bad = [size for size in sizes if not 1 <= size <= table.vocab_size]
    if bad:
        raise UsageError(
            "a size is outside the vocabulary",
            got=", ".join(map(str, bad)),
            expected=f"1 to {table.vocab_size:,}",
        )
    texts = texts_of(counts, heldout)
    forced = sorted({*table.special.eos, *table.special.control})
    ranked = rank_all(table.counts, forced)
    ladder = sorted(set(sizes)) if sizes else size_ladder(table.vocab_size, map(len, vocabs.values()))
    return {
        "schema_version": RESULTS_VERSION,
        "vocab_size": table.vocab_size,
        "fingerprint": table.fingerprint,
        "forced": forced,
        "table": {
            "name": counts.name,
            "mode": table.mode,
            "tokens": table.tokens,
            "documents": table.documents,
            "bytes": table.bytes,
        },
        "sizes": ladder,
        "chosen_sizes": sorted(set(sizes)),
        "curve_sizes": curve_sizes(table.vocab_size),
        "texts": [_text_facts(text, table.counts, ranked, ladder) for text in texts],
        "vocabularies": [_vocab_facts(name, subset, texts) for name, subset in vocabs.items()],
    }


def texts_of(counts: TablePart, heldout: Sequence[TablePart]) -> list[Text]:
    """Return the counted table, the held-out tables, and the domains of each; empty domains are omitted."""
    texts = []
    for part, role in [(counts, COUNTED), *((held, HELD_OUT) for held in heldout)]:
        if part.table.tokens == 0:
            raise DataError(
                "the frequency table has no tokens: coverage is undefined",
                got=part.name,
                expected="a table with tokens",
                remedy="check the texts that it was counted from",
            )
        mixed = part.table.mode == "mixture"
        whole = "all counted" if role == COUNTED else part.name
        texts.append(Text(whole, role, False, part.table.counts, mixed))
        prefix = "" if role == COUNTED else f"{part.name}: "
        texts += [
            Text(prefix + name, role, True, tally.counts, mixed)
            for name, tally in part.table.domains.items()
            if tally.tokens
        ]
    names = [text.name for text in texts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            "two texts have one name", got=", ".join(twice), remedy="name them: --heldout NAME=DIR"
        )
    return texts


def _warn_of_leaks(counts: TablePart, heldout: Sequence[TablePart]) -> None:
    seen = {digest: name for name, digest in counts.table.sources.items()}
    for part in heldout:
        for name, digest in part.table.sources.items():
            if digest in seen:
                say(
                    f"Warning: {name} of the held-out table {part.name} was counted too (as {seen[digest]}): "
                    "its coverage is that of seen text."
                )
                break


def _text_facts(text: Text, seen: Ids, ranked: Ids, ladder: Sequence[int]) -> dict[str, Any]:
    counts = text.counts
    size = knee(ranked, counts)
    return {
        "name": text.name,
        "role": text.role,
        "domain": text.part,
        "tokens": int(counts.sum()),
        "ids": int(np.count_nonzero(counts)),
        "coverage": coverage_at(ranked, counts, ladder),
        "own_coverage": coverage_at(rank_all(counts), counts, ladder),
        "curve": coverage_at(ranked, counts, curve_sizes(len(counts))),
        "knee": {"size": size, "coverage": coverage_at(ranked, counts, [size])[0]},
        "unseen_estimate": None if text.mixed else unseen_mass(counts),
        "without_count": unseen_share(seen, counts),
    }


def _vocab_facts(name: str, subset: VocabSubset, texts: Sequence[Text]) -> dict[str, Any]:
    size = len(subset)

    def share(ranked: Ids, text: Text) -> float | None:
        return coverage_at(ranked, text.counts, [size])[0]

    return {
        "name": name,
        "size": size,
        "of_vocabulary": size / subset.vocab_size,
        "schedule": list(subset.schedule),
        "coverage": {text.name: share(subset.ranked, text) for text in texts},
        "best": {text.name: share(rank_all(text.counts), text) for text in texts},
        "by_step": {text.name: coverage_at(subset.ranked, text.counts, subset.schedule) for text in texts},
    }
