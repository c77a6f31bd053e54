"""Draft heads over a draft vocabulary: static, scheduled, and with a dynamic tail beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..core.errors import MismatchError, UsageError, did_you_mean
from ..core.progress import say
from ..corpus.fingerprint import check_fingerprint
from ..models.heads import DraftHead, HeadBase, HeadOptions, StaticHead, build_head
from ..models.heads_core import rows_of
from ..models.heads_low_rank import check_shortlist
from ..vocab.subset import VocabSubset, load_subset

if TYPE_CHECKING:
    from .build_heads import HeadRequest, NamedHead

SOURCES = ("context", "ranker")
RANKER = "ranker"


@dataclass(frozen=True)
class Dynamic:
    """What is scored beside a draft vocabulary.

    Attributes:
        source: ``context``: the tokens of the request's text; ``ranker``: a trained ranker's best.
        size: most tokens of it; None takes the default.
    """

    source: Literal["context", "ranker"]
    size: int | None = None


@dataclass(frozen=True)
class BuiltHead:
    """A head of a run: what names it behind its drafter, and one phrase about it.

    Attributes:
        extra: it is more than a static vocabulary, so that reports name it.
    """

    label: str
    head: DraftHead
    text: str
    extra: bool = True


def parse_dynamic(text: str) -> Dynamic:
    """``context``, ``context:512``, ``ranker`` or ``ranker:512``.

    Raises:
        UsageError: anything else.
    """
    source, separator, size = text.partition(":")
    if source not in SOURCES:
        raise UsageError(
            "there is no such source of dynamic draft tokens",
            got=source,
            expected="context[:SIZE] or ranker[:SIZE]",
            source="--dynamic",
            remedy=did_you_mean(source, SOURCES),
        )
    if separator and not (size.isdecimal() and int(size) > 0):
        raise UsageError(
            "the number of dynamic draft tokens cannot be read",
            got=text,
            expected=f"{source}:SIZE with a size of 1 or more, such as {source}:512",
            source="--dynamic",
        )
    return Dynamic("context" if source == "context" else "ranker", int(size) if separator else None)


def check_dynamic(given: Sequence[str], heads: Sequence[NamedHead]) -> None:
    """Refuse what cannot be read, what is asked for twice, and a ranker's tail without a ranker.

    Raises:
        UsageError: one of these.
    """
    sources = [parse_dynamic(text).source for text in given]
    if len(set(sources)) < len(sources):
        raise UsageError("--dynamic names one source twice", got=" ".join(given), expected="each once")
    if RANKER in sources and not any(head.loaded.kind == RANKER for head in heads):
        raise UsageError(
            "--dynamic ranker takes its tokens from a ranker",
            got=", ".join(f"{head.label} ({head.loaded.kind})" for head in heads) or "no draft head",
            expected="--head with a ranker beside it",
        )


def heads_for(
    base: HeadBase,
    vocabs: Sequence[tuple[str, Path]],
    named: Sequence[NamedHead],
    request: HeadRequest | None = None,
    fingerprint: str | None = None,
) -> list[BuiltHead]:
    """All heads that a user asks for over one exact head, beside that head itself.

    Each draft vocabulary (label: its own), each trained head (its own), then each draft vocabulary as the hot
    core of each dynamic head (``vocabulary+context``, ``vocabulary+ranker``): what was asked for last is last.
    A hot core may lack ids of the exact head; the static head of that vocabulary is then left out, and said so.

    Args:
        base: of a drafter (``base_of``) or of a model (``base_of_model``).
        vocabs: label and folder of subset artefacts.
        named: heads that belong to this base.
        request: its ``dynamic`` is read.
        fingerprint: of the tokenizer that the base was made for; None where that is not known.

    Raises:
        VocabForgeError: a vocabulary of another tokenizer, or with ids beyond the head where it is no hot core;
            a size beyond the head; dynamic tokens without a vocabulary.
    """
    dynamic = [parse_dynamic(text) for text in request.dynamic] if request is not None else []
    if dynamic and not vocabs:
        raise UsageError(
            "--dynamic adds tokens to a draft vocabulary",
            got="no draft vocabulary",
            expected="--vocab DIR beside it",
        )
    subsets = [(label, read_subset(path, fingerprint), path) for label, path in vocabs]
    found = []
    for label, subset, path in subsets:
        try:
            found.append(_vocab_head(base, label, subset, path))
        except MismatchError as error:
            if not dynamic:
                raise
            say(f"{label} is a hot core only, less the ids that the drafter's head lacks ({error.got})")
    for one in named:
        head = one.over(base)
        found.append(BuiltHead(one.label, head, phrase(one.loaded.kind, head, one.options)))
    for label, subset, _ in subsets:
        for what in dynamic:
            found += _dynamic_heads(base, label, subset, what, named, request)
    return found


def read_subset(vocab: Path, fingerprint: str | None) -> VocabSubset:
    """A subset artefact, its tokenizer compared where the other side is known.

    Raises:
        ArtifactError: no such artefact.
        MismatchError: it was made for another tokenizer.
    """
    subset = load_subset(vocab)
    if fingerprint:
        check_fingerprint(
            fingerprint,
            subset.fingerprint,
            expected_from="the drafter",
            got_from=f"the draft vocabulary {vocab}",
            remedy="run count-freq with the target's tokenizer and select-vocab again",
        )
    return subset


def _vocab_head(base: HeadBase, label: str, subset: VocabSubset, source: Path) -> BuiltHead:
    rows, known = rows_of(base, subset.ids.tolist())
    if not bool(known.all()):
        missing = subset.ids[~known.cpu().numpy()]
        raise MismatchError(
            "the drafter's head does not score every token of this draft vocabulary",
            got=f"{len(missing):,} ids without a row, first {missing[:5].tolist()}",
            expected=f"a subset of the head's {len(base.target_ids):,} ids",
            source=source,
            remedy="prune a drafter trained with the full vocabulary",
        )
    if not subset.schedule:
        head = StaticHead(base.weight[rows], base.target_ids[rows])
        return BuiltHead(label, head, f"draft vocabulary of {head.size:,} tokens", extra=False)
    options = HeadOptions(ranked=tuple(subset.ranked.tolist()), schedule=subset.schedule)
    scheduled = build_head("scheduled", base, None, options)
    return BuiltHead(label, scheduled, phrase("scheduled", scheduled, options))


def _dynamic_heads(
    base: HeadBase,
    label: str,
    subset: VocabSubset,
    what: Dynamic,
    named: Sequence[NamedHead],
    request: HeadRequest | None,
) -> list[BuiltHead]:
    ranked = tuple(subset.ranked.tolist())
    if what.source == "context":
        options = HeadOptions(ranked=ranked, context=what.size)
        head = build_head("context", base, None, options)
        return [BuiltHead(f"{label}+context", head, phrase("context", head, options))]
    check_shortlist(what.size, len(base.embedding), source="--dynamic")
    rows, fp8 = (request.rows, request.fp8) if request is not None else (None, None)
    options = HeadOptions(ranked=ranked, shortlist=what.size, rows=rows, fp8=fp8)
    found = []
    for one in named:
        if one.loaded.kind == RANKER:
            head = build_head("hybrid", base, one.loaded.module, options)
            found.append(BuiltHead(f"{label}+{one.label}", head, phrase("hybrid", head, options)))
    return found


def phrase(kind: str, built: DraftHead, options: HeadOptions) -> str:
    """What a head is, for tables and reports."""
    parts = [f"{kind} head over {built.size:,} tokens"]
    if (core := getattr(built, "core_size", None)) is not None:
        parts.append(f"hot core of {core:,}")
    if built.context_size:
        parts.append(f"up to {built.context_size:,} of the text")
    if (tail := getattr(built, "tail_size", None)) is not None:
        parts.append(f"tail of {tail:,} from a ranker")
    if (sizes := getattr(built, "sizes", None)) is not None:
        parts.append(f"tokens by draft step {' '.join(map(str, sizes))}")
    if (shortlist := getattr(built, "shortlist", None)) is not None:
        parts.append(f"shortlist of {shortlist:,}")
    if (budgets := getattr(built, "budgets", None)) is not None:
        parts.append(f"clusters by draft step {' '.join(map(str, budgets))}")
    if options.rows is not None:
        parts.append(f"{options.rows} rows")
    if options.fp8:
        parts.append("scorer in 8 bits")
    return ", ".join(parts)
