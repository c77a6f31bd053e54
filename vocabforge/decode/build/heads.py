"""Draft heads: parsing of their options, construction and description."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ...core.errors import UsageError
from ...core.values import parse_size
from ...models.drafters.revocab import subset_rows
from ...models.heads.context import rows_of
from ...models.heads.io import LoadedHead
from ...models.heads.low_rank import check_shortlist
from ...models.heads.registry import DraftHead, HeadBase, HeadOptions, ScoresSome, StaticHead, build_head
from ...models.heads.router import Router, check_budgets
from ...models.heads.scorer import LowRankScorer
from ...vocab.subset.schedule import schedule_sizes
from ...vocab.subset.subset import VocabSubset, load_subset
from ..spec import RANKER_REMOVED, DraftVocabulary, MethodSpec, meaningless, option_needs, option_of


@dataclass(frozen=True)
class BuiltHead:
    """A draft head and its description; ``extra`` if it is more than a static vocabulary."""

    head: DraftHead
    text: str
    extra: bool = True


def parse_dynamic(text: str) -> int | None:
    """Parse ``context`` or ``context:512``; return the number of the text's tokens, None for the default."""
    source, separator, size = text.partition(":")
    if source != "context":
        raise UsageError(
            RANKER_REMOVED if source == "ranker" else "--dynamic adds the tokens of the text",
            got=text,
            expected="context[:SIZE]",
            source="--dynamic",
        )
    try:
        tokens = parse_size(size) if separator else None
    except ValueError:
        tokens = 0
    if tokens is not None and tokens < 1:
        raise UsageError(
            "the number of dynamic draft tokens cannot be read",
            got=text,
            expected="context:SIZE with a size of 1 or more, such as context:512",
            source="--dynamic",
        )
    return tokens


def spec_head(
    base: HeadBase, spec: MethodSpec, trained: LoadedHead | None = None, fingerprint: str | None = None
) -> BuiltHead | None:
    """Return the draft head of a spec over an exact head; None for the exact head itself.

    A draft vocabulary alone is a head with rows of the exact head; see :func:`head_parts` for the rest.
    """
    if spec.vocab is not None and spec.dynamic is None:
        return _vocab_head(base, load_subset(spec.vocab, fingerprint), spec.vocab)
    parts = head_parts(base, spec, trained, fingerprint)
    if parts is None:
        return None
    kind, module, options = parts
    head = build_head(kind, base, module, options)
    return BuiltHead(head, phrase(kind, head, options))


def head_parts(
    base: HeadBase, spec: MethodSpec, trained: LoadedHead | None = None, fingerprint: str | None = None
) -> tuple[str, nn.Module | None, HeadOptions] | None:
    """Return kind, trained part and settings of a spec's draft head; None if it has none.

    A hot core may have ids that the exact head lacks; a draft vocabulary may not. ``trained`` is the head in
    ``spec.head``, ``fingerprint`` that of the base's tokenizer, if known.

    Raises:
        VocabForgeError: the vocabulary is of another tokenizer or has ids beyond the head, or the head does
            not support a setting.
    """
    if spec.vocab is None or spec.dynamic is None:
        if trained is None:
            return None
        options = head_options(trained.kind, trained.artifact.meta, spec)
        check_head_options(spec, [trained.kind], f"{spec.head} ({trained.kind})")
        if isinstance(trained.module, Router) and options.budgets:
            check_budgets(options.budgets, trained.module.clusters, source=trained.artifact.path)
        if isinstance(trained.module, LowRankScorer):
            check_shortlist(spec.shortlist, len(trained.module.head_weight), source=trained.artifact.path)
        return trained.kind, trained.module, options
    context = parse_dynamic(spec.dynamic)
    ranked = tuple(load_subset(spec.vocab, fingerprint).ranked.tolist())
    return "context", None, HeadOptions(ranked=ranked, context=context)


def check_head_options(spec: MethodSpec, kinds: Collection[str], got: str) -> None:
    """Reject options of draft heads of other ``kinds`` than those of the run, which ``got`` describes."""
    for name in spec.given():
        wanted = option_needs(name).heads
        if wanted and not set(wanted) & set(kinds):
            raise meaningless(option_of(name), got, f"--head with a {' or '.join(wanted)}")


def head_options(kind: str, meta: Mapping[str, Any], spec: MethodSpec) -> HeadOptions:
    """Return the options of a kind of head: from the spec if given, else as saved."""

    def reads(name: str) -> bool:
        return kind in option_needs(name).heads

    shortlist = spec.shortlist or meta.get("shortlist")
    budgets = parse_budget(spec.budget, spec.draft_steps) if spec.budget else meta.get("budgets")
    return HeadOptions(
        shortlist=int(shortlist) if shortlist and reads("shortlist") else None,
        budgets=tuple(map(int, budgets)) if budgets and reads("budget") else None,
        rows=spec.head_rows if reads("head_rows") else None,
    )


def parse_budget(text: str, steps: int) -> tuple[int, ...]:
    """Parse ``32`` or ``decay:32:8`` into the number of clusters of each draft step."""
    schedule, *sizes = text.split(":") if ":" in text else ("constant", text)
    if not 1 <= len(sizes) <= 2 or not all(size.isdecimal() for size in sizes):
        raise UsageError(
            "the budget of clusters cannot be read",
            got=text,
            expected="K, or SCHEDULE:K_MAX:K_MIN such as decay:32:8",
            source="--budget",
        )
    return schedule_sizes(schedule, int(sizes[0]), int(sizes[1]) if sizes[1:] else None, max(steps, 2))


def missing_ids(base: HeadBase, subset: VocabSubset) -> Any:
    """Return the ids (M,) of a draft vocabulary that an exact head does not score."""
    _, known = rows_of(base, subset.ids.tolist())
    return subset.ids[~known.cpu().numpy()]


def _vocab_head(base: HeadBase, subset: VocabSubset, source: Path) -> BuiltHead:
    rows = subset_rows(base.target_ids, subset, source=source)
    if not subset.schedule:
        head = StaticHead(base.weight[rows], base.target_ids[rows], transform=base.transform)
        return BuiltHead(head, f"draft vocabulary of {head.size:,} tokens", extra=False)
    options = HeadOptions(ranked=tuple(subset.ranked.tolist()), schedule=subset.schedule)
    scheduled = build_head("scheduled", base, None, options)
    return BuiltHead(scheduled, phrase("scheduled", scheduled, options))


_PARTS = (
    ("core_size", "hot core of {:,}"),
    ("context_size", "up to {:,} of the text"),
    ("sizes", "tokens by draft step {}"),
    ("shortlist", "shortlist of {:,}"),
    ("budgets", "clusters by draft step {}"),
)


def phrase(kind: str, built: DraftHead, options: HeadOptions) -> str:
    """Describe a head for tables and reports."""
    parts = [f"{kind} head over {built.size:,} tokens"]
    for name, text in _PARTS:
        if value := getattr(built, name, None):
            parts.append(text.format(value if isinstance(value, int) else " ".join(map(str, value))))
    if options.rows is not None:
        parts.append(f"{options.rows} rows")
    return ", ".join(parts)


def draft_vocabulary(head: DraftHead, steps: int, of: int) -> DraftVocabulary:
    """Return the size of a head over the ``steps`` draft steps of a cycle; ``of``: rows of the LM head."""
    kind = getattr(head, "KIND", "full" if head.size >= of else "static")
    if not isinstance(head, ScoresSome):
        return DraftVocabulary(kind, head.size, of)
    sizes = [head.scored(step) for step in range(max(steps, 1))]
    return DraftVocabulary(kind, round(sum(sizes) / len(sizes)), of)
