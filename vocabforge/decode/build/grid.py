"""Expansion of a command line into named specs, and the checks that need no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import UsageError
from ...core.registry import resolve
from ..proposers.registry import FITTING, FOREIGN, PROPOSERS, check_hybrid, part_names, usable, with_drafter
from ..trees.policies import tree_settings
from ..verify.registry import chosen_verifier
from .heads import RANKER, no_ranker, parse_dynamic
from .spec import DRAFT_MODEL, MethodGrid, MethodSpec, meaningless, meant_for, only_proposer, option_of

_LANGUAGE_MODEL = "--drafter with a language model's folder beside it"


@dataclass(frozen=True)
class DrafterFacts:
    """Facts about a drafter that the expansion needs.

    Attributes:
        proposers: proposers that can draft with it.
        heads: labels of the heads trained on it.
        hot_only: labels of the vocabularies that are only a hot core (with tokens that its head lacks).
        overlap: saved comparison of its bridge.
        tokenizer: whether it needs ``drafter_tokenizer``.
    """

    proposers: Sequence[str]
    heads: Sequence[str] = ()
    hot_only: Sequence[str] = ()
    overlap: Path | None = None
    tokenizer: bool = False


def draft_several(grid: MethodGrid) -> bool:
    """Return whether more than one method drafts, so that an option may apply to only some of them."""
    alone = sum(with_drafter(name) is None for name in grid.proposers)
    return len(grid.drafters) * max(len(grid.proposers) - alone, 1) + alone > 1


def expand(
    grid: MethodGrid, drafters: Mapping[Path, DrafterFacts], heads: Mapping[str, str]
) -> tuple[dict[str, MethodSpec], list[str]]:
    """Return the methods of a command line by name, in order, and notes about what some of them leave out.

    First each proposer without a drafter, then each drafter with each of its proposers: with its own head,
    with each draft vocabulary, with each trained head, then with each draft vocabulary as the hot core of
    each dynamic head (``vocabulary+context``, ``vocabulary+ranker``).

    Args:
        drafters: facts by folder.
        heads: kind of each draft head by its label.

    Raises:
        UsageError: two methods have the same name, or no method uses an option.
    """
    _check_heads(grid, heads)
    found, notes = dict[str, MethodSpec](), list[str]()
    several = draft_several(grid)

    def add(name: str, spec: MethodSpec, proposer: str) -> None:
        if several:
            spec, lost = usable(spec, proposer)
            if lost:
                them = "them" if lost[1:] else "it"
                notes.append(f"{name} drafts without {', '.join(lost)}: {proposer} has no use for {them}.")
        if name in found:
            raise UsageError(
                "two methods have the same name", got=name, remedy="name them: --drafter LABEL=DIR"
            )
        found[name] = spec

    whole = grid.common.without("overlap", "drafter_tokenizer")
    bare = whole.without(*(name for name in grid.common.given() if meant_for(name)))
    for name in grid.proposers:
        if with_drafter(name) is None:
            spec = bare.model_copy(update={"proposer": name})
            add(name, spec, name)
            if name == "early-exit":
                for label, _, changes in _vocab_ways(grid, {}, ()):
                    add(f"{name}+{label}", spec.model_copy(update=changes), name)
    for label, path in grid.drafters:
        facts = drafters[path]
        for name in facts.proposers:
            method = label if len(facts.proposers) == 1 else f"{label}:{name}"
            own = {
                "drafter": path,
                "proposer": name if any(map(with_drafter, grid.proposers)) else None,
                "overlap": facts.overlap,
                "drafter_tokenizer": grid.common.drafter_tokenizer if facts.tokenizer else None,
            }
            add(method, bare.model_copy(update=own), name)
            useless = [o for o, there in (("--vocab", grid.vocabs), ("--dynamic", grid.dynamic)) if there]
            foreign = name in FOREIGN and (name != "tli" or bool(grid.dynamic))  # TLI restricts its bridge
            if useless and foreign and several:
                given = " and ".join(useless)
                notes.append(f"{method} drafts without {given}: {name} has no use for them.")
                continue
            trained = {one: heads[one] for one in facts.heads}
            for more, kind, changes in _vocab_ways(grid, trained, facts.hot_only):
                start = bare if kind is None else _head_options(whole, kind, hybrid="vocab" in changes)
                add(f"{method}+{more}", start.model_copy(update={**own, **changes}), name)
    return found, notes


_Way = tuple[str, "str | None", dict[str, object]]


def _vocab_ways(grid: MethodGrid, trained: Mapping[str, str], hot_only: Sequence[str]) -> list[_Way]:
    """Return the alternatives to a drafter's own head: name, kind of trained head, fields to set."""
    paths = dict(grid.heads)
    ways: list[_Way] = [
        (label, None, {"vocab": path}) for label, path in grid.vocabs if label not in hot_only
    ]
    ways += [(label, kind, {"head": paths[label]}) for label, kind in trained.items()]
    for label, path in grid.vocabs:
        for text in grid.dynamic:
            core = {"vocab": path, "dynamic": text}
            if parse_dynamic(text).source == "context":
                ways.append((f"{label}+context", None, core))
            else:
                ways += [
                    (f"{label}+{one}", kind, {**core, "head": paths[one]})
                    for one, kind in trained.items()
                    if kind == RANKER
                ]
    return ways


def _head_options(spec: MethodSpec, kind: str, *, hybrid: bool) -> MethodSpec:
    """Drop the options of other kinds of head; ``dynamic`` sets the size of a hybrid head's tail."""
    useless = [name for name in spec.given() if (kinds := meant_for(name)) and kind not in kinds]
    return spec.without(*useless, *(["shortlist"] if hybrid else []))


def _check_heads(grid: MethodGrid, heads: Mapping[str, str]) -> None:
    there = ", ".join(f"{label} ({kind})" for label, kind in heads.items()) or "no draft head"
    for name in grid.common.given():
        kinds = meant_for(name)
        if kinds and not set(kinds) & set(heads.values()):
            raise meaningless(option_of(name), there, f"--head with a {' or '.join(kinds)}")
    sources = [parse_dynamic(text).source for text in grid.dynamic]
    if len(set(sources)) < len(sources):
        raise UsageError(
            "--dynamic has the same source twice", got=" ".join(grid.dynamic), expected="each once"
        )
    if sources and not grid.vocabs:
        raise UsageError(
            "--dynamic adds tokens to a draft vocabulary",
            got="no draft vocabulary",
            expected="--vocab DIR",
        )
    if RANKER in sources and RANKER not in heads.values():
        raise no_ranker(there)


def check_grid(grid: MethodGrid, kinds: Sequence[str], *, sampled: bool) -> None:
    """Reject a command line with missing parts or with settings that have no effect in the run.

    Args:
        kinds: kinds of the run's drafters.

    Raises:
        UsageError: it has either.
    """
    _check_belonging(grid.heads, grid.overlaps, kinds)
    _check_settings(grid.common, grid.proposers, kinds, sampled=sampled)


def check_spec(spec: MethodSpec, kind: str | None, *, sampled: bool) -> None:
    """Check one method, given the kind of its drafter, before anything is loaded.

    Raises:
        UsageError: the settings do not fit together.
    """
    kinds = [] if kind is None else [kind]
    _check_settings(spec, [] if spec.proposer is None else [spec.proposer], kinds, sampled=sampled)
    parts = part_names(spec.proposer) if spec.proposer else []
    if spec.drafter is not None and parts and with_drafter(spec.proposer or "") is None:
        raise UsageError(
            "this proposer does not use a drafter",
            got=f"--proposer {spec.proposer} and --drafter {spec.drafter}",
            expected="one of them",
            remedy="vocabforge eval compares several",
        )
    if spec.vocab is not None and spec.drafter is None and "early-exit" not in parts:
        raise UsageError(
            "--vocab restricts a draft head",
            got=f"proposer {spec.proposer}, which has none" if spec.proposer else "nothing that drafts",
            expected="--drafter DIR, or --proposer early-exit",
        )
    _check_belonging(spec.head, spec.overlap, kinds)
    if (problem := spec.contradiction()) is not None:
        raise UsageError(problem, expected="settings that belong to one method")
    if spec.dynamic is not None:
        parse_dynamic(spec.dynamic)


def _check_belonging(head: object, overlap: object, kinds: Sequence[str]) -> None:
    if head and set(kinds) <= {DRAFT_MODEL}:
        raise UsageError("--head belongs to a drafter", expected="--drafter with a trained drafter")
    if overlap:
        _check_draft_model("--overlap", kinds)


def _check_draft_model(option: str, kinds: Sequence[str]) -> None:
    if DRAFT_MODEL not in kinds:
        raise meaningless(option, "no draft model", _LANGUAGE_MODEL)


def _check_settings(
    spec: MethodSpec, proposers: Sequence[str], kinds: Sequence[str], *, sampled: bool
) -> None:
    parts = [part for name in proposers for part in part_names(name)]
    unknown = [name for name in parts if name not in PROPOSERS]
    if unknown:
        raise UsageError(
            "there is no such proposer",
            got=", ".join(unknown),
            expected=", ".join(PROPOSERS),
            source="--proposer",
        )
    if spec.verifier is not None:
        chosen_verifier(spec.verifier, sampled=sampled)
    for name in proposers:
        if len(part_names(name)) > 1:
            check_hybrid(name, spec.control)
        part = with_drafter(name)
        if part and not any(part in FITTING[kind] for kind in kinds):
            raise UsageError(
                "this proposer has no drafter that drafts so",
                got=f"--proposer {name} " + (f"with {' and '.join(kinds)}" if kinds else "without --drafter"),
                expected=_LANGUAGE_MODEL
                if part in FITTING[DRAFT_MODEL]
                else "--drafter with a drafter of its kind",
            )
    given = [name for name in spec.given() if not meant_for(name) and name not in _NOT_DRAFTING]
    # The proposer of a draft model may be chosen later.
    open_choice = DRAFT_MODEL in kinds and not any(map(with_drafter, proposers))
    for name in given:
        proposer = only_proposer(name)
        if proposer and proposer not in parts and not (open_choice and proposer in FOREIGN):
            named = ", ".join(proposers) or "no named proposer"
            raise meaningless(option_of(name), named, f"--proposer {proposer}")
    if spec.confidence is not None and "dspark" not in kinds:
        raise UsageError(
            "--confidence needs a DSpark drafter",
            got="--confidence " + (f"with {' and '.join(kinds)}" if kinds else "without --drafter"),
            expected="--drafter with a drafter of kind dspark",
        )
    if spec.drafter_tokenizer is not None:
        _check_draft_model("--drafter-tokenizer", kinds)
    if given and not kinds and all(map(with_drafter, proposers)):
        raise UsageError(
            "an option of drafting has no effect here",
            got=f"{', '.join(map(option_of, given))}, and nothing drafts",
            expected="--drafter DIR, --proposer n-gram or --proposer early-exit",
        )
    if spec.tree in (None, "dynamic"):
        tree_settings(spec.depth, spec.topk, spec.total_nodes)


# Fields that select inputs, not how to draft.
_NOT_DRAFTING = ("drafter", "proposer", "vocab", "head", "dynamic", "overlap", "drafter_tokenizer")


def own_options(spec: MethodSpec, proposer: str) -> list[str]:
    """Return the given options that only this proposer reads."""
    return [option_of(name) for name in spec.given() if only_proposer(name) == proposer]


def fitting(kind: str, named: Sequence[str], path: Path) -> list[str]:
    """Return the named proposers that fit a kind of drafter (of ``FITTING``); its default if none is named.

    Raises:
        UsageError: none of the named proposers fits.
    """
    wanted = [name for name in named if with_drafter(name)]
    fitting: tuple[str, ...] = resolve(FITTING, kind, "row of vocabforge.fitting")
    chosen = [name for name in wanted if with_drafter(name) in fitting]
    if wanted and not chosen:
        raise UsageError(
            "none of the proposers can draft with this drafter",
            got=f"--proposer {', '.join(wanted)} with a drafter of kind {kind}",
            expected=" or ".join(fitting),
            source=path,
        )
    return chosen or [fitting[0]]
