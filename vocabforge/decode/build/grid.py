"""Expansion of a command line into named specs, and the checks that need no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import UsageError
from ...core.registry import check_known, resolve
from ..proposers.registry import FITTING, FOREIGN, PROPOSERS, part_names, usable, with_drafter
from ..spec import DRAFT_MODEL, MethodGrid, MethodSpec, meaningless, option_needs, option_of
from ..trees.policies import tree_settings
from ..verify.registry import chosen_verifier
from .heads import check_head_options, parse_dynamic


@dataclass(frozen=True)
class DrafterFacts:
    """Facts about a drafter that the expansion needs."""

    proposers: Sequence[str]  # that can draft with it
    kind: str = DRAFT_MODEL
    heads: Sequence[str] = ()  # labels of the trained heads
    hot_only: Sequence[str] = ()  # labels of the vocabularies that are only a hot core: its head lacks tokens
    overlap: Path | None = None  # saved comparison of its bridge
    tokenizer: bool = False  # whether it needs ``drafter_tokenizer``


def draft_several(grid: MethodGrid) -> bool:
    """Return whether more than one method drafts, so that an option may apply to only some of them."""
    alone = sum(with_drafter(name) is None for name in grid.proposers)
    return len(grid.drafters) * max(len(grid.proposers) - alone, 1) + alone > 1


def expand(
    grid: MethodGrid, drafters: Mapping[Path, DrafterFacts], heads: Mapping[str, str]
) -> tuple[dict[str, MethodSpec], list[str]]:
    """Return the methods of a command line by name, in order, and notes about what some of them leave out.

    First each proposer without a drafter, then each drafter with each of its proposers: with its own head,
    with each draft vocabulary, with each trained head, then with each draft vocabulary as the hot core of a
    context head (``vocabulary+context``).

    Args:
        drafters: facts by folder.
        heads: kind of each draft head by its label.

    Raises:
        UsageError: two methods have the same name, or no method uses an option.
    """
    there = ", ".join(f"{label} ({kind})" for label, kind in heads.items()) or "no draft head"
    check_head_options(grid.common, set(heads.values()), there)
    for text in grid.dynamic:
        parse_dynamic(text)
    if grid.dynamic and not grid.vocabs:
        raise UsageError(
            "--dynamic adds tokens to a draft vocabulary", got="no draft vocabulary", expected="--vocab DIR"
        )
    specs, notes = dict[str, MethodSpec](), list[str]()
    several = draft_several(grid)

    def add(name: str, spec: MethodSpec, proposer: str, kind: str | None = None) -> None:
        if several:
            needs = {option: option_needs(option).drafter for option in spec.given()}
            spec = spec.without(*(option for option, kinds in needs.items() if kinds and kind not in kinds))
            spec, lost = usable(spec, proposer)
            if lost:
                them = "them" if lost[1:] else "it"
                notes.append(f"{name} drafts without {', '.join(lost)}: {proposer} has no use for {them}.")
        if name in specs:
            raise UsageError(
                "two methods have the same name", got=name, remedy="name them: --drafter LABEL=DIR"
            )
        specs[name] = spec

    whole = grid.common.without("overlap", "drafter_tokenizer")
    bare = whole.without(*(name for name in grid.common.given() if option_needs(name).heads))
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
            add(method, bare.model_copy(update=own), name, facts.kind)
            useless = [
                option for option, given in (("--vocab", grid.vocabs), ("--dynamic", grid.dynamic)) if given
            ]
            foreign = name in FOREIGN and (name != "tli" or bool(grid.dynamic))  # TLI restricts its bridge
            if useless and foreign and several:
                options = " and ".join(useless)
                notes.append(f"{method} drafts without {options}: {name} has no use for them.")
                continue
            trained = {head: heads[head] for head in facts.heads}
            for more, kind, changes in _vocab_ways(grid, trained, facts.hot_only):
                start = bare if kind is None else _head_options(whole, kind)
                add(f"{method}+{more}", start.model_copy(update={**own, **changes}), name, facts.kind)
    return specs, notes


def _head_options(spec: MethodSpec, kind: str) -> MethodSpec:
    return spec.without(*(name for name in spec.given() if kind not in (option_needs(name).heads or [kind])))


_Way = tuple[str, "str | None", dict[str, object]]


def _vocab_ways(grid: MethodGrid, trained: Mapping[str, str], hot_only: Sequence[str]) -> list[_Way]:
    """Return the alternatives to a drafter's own head: name, kind of trained head, fields to set."""
    paths = dict(grid.heads)
    ways: list[_Way] = [
        (label, None, {"vocab": path}) for label, path in grid.vocabs if label not in hot_only
    ]
    ways += [(label, kind, {"head": paths[label]}) for label, kind in trained.items()]
    ways += [
        (f"{label}+context", None, {"vocab": path, "dynamic": text})
        for label, path in grid.vocabs
        for text in grid.dynamic
    ]
    return ways


def check_grid(grid: MethodGrid, kinds: Sequence[str], *, sampled: bool) -> None:
    """Reject a command line with missing parts or with settings that have no effect in the run.

    Raises:
        UsageError: it has either.
    """
    first = {"head": next((path for _, path in grid.heads), None), "overlap": next(iter(grid.overlaps), None)}
    _check_settings(grid.common.model_copy(update=first), grid.proposers, kinds, sampled=sampled)


def check_spec(spec: MethodSpec, kind: str | None, *, sampled: bool) -> None:
    """Check one method, given the kind of its drafter, before anything is loaded.

    Raises:
        UsageError: the settings do not fit together.
    """
    proposers = [] if spec.proposer is None else [spec.proposer]
    _check_settings(spec, proposers, [] if kind is None else [kind], sampled=sampled)
    if spec.drafter is not None and proposers and with_drafter(proposers[0]) is None:
        raise UsageError(
            "this proposer does not use a drafter",
            got=f"--proposer {spec.proposer} and --drafter {spec.drafter}",
            expected="one of them",
            remedy="vocabforge eval compares several",
        )
    if (
        spec.vocab is not None
        and spec.drafter is None
        and "early-exit" not in part_names(spec.proposer or "")
    ):
        raise UsageError(
            "--vocab restricts a draft head",
            got=f"proposer {spec.proposer}, which has none" if spec.proposer else "nothing that drafts",
            expected="--drafter DIR, or --proposer early-exit",
        )
    if (problem := spec.contradiction()) is not None:
        raise UsageError(problem, expected="settings that belong to one method")
    if spec.dynamic is not None:
        parse_dynamic(spec.dynamic)


def _check_settings(
    spec: MethodSpec, proposers: Sequence[str], kinds: Sequence[str], *, sampled: bool
) -> None:
    parts = [part for name in proposers for part in part_names(name)]
    for name in parts:
        check_known(name, PROPOSERS, "proposer", source="--proposer")
    if spec.verifier is not None:
        chosen_verifier(spec.verifier, sampled=sampled)
    for name in proposers:
        _check_proposer(name, kinds, spec.control)
    if spec.head is not None and set(kinds) <= {DRAFT_MODEL}:
        raise UsageError("--head belongs to a drafter", expected="--drafter with a trained drafter")
    # The proposer of a draft model may be chosen later.
    open_choice = DRAFT_MODEL in kinds and not any(map(with_drafter, proposers))
    for name in spec.given():
        needs = option_needs(name)
        if needs.drafter and not set(needs.drafter) & set(kinds):
            wanted = _drafter_of(f"kind {' or '.join(needs.drafter)}")
            raise meaningless(option_of(name), " and ".join(kinds) or "no drafter", wanted)
        if needs.proposer and needs.proposer not in parts and not (open_choice and needs.proposer in FOREIGN):
            named = ", ".join(proposers) or "no named proposer"
            raise meaningless(option_of(name), named, f"--proposer {needs.proposer}")
    drafting = [name for name in spec.given() if not option_needs(name).heads and name not in _INPUTS]
    if drafting and not kinds and all(map(with_drafter, proposers)):
        raise UsageError(
            "an option of drafting has no effect here",
            got=f"{', '.join(map(option_of, drafting))}, and nothing drafts",
            expected="--drafter DIR, --proposer n-gram or --proposer early-exit",
        )
    if spec.tree in (None, "dynamic"):
        tree_settings(spec.depth, spec.topk, spec.total_nodes)


# Fields that select inputs, not how to draft.
_INPUTS = ("drafter", "proposer", "vocab", "head", "dynamic", "overlap", "drafter_tokenizer")


def _check_proposer(name: str, kinds: Sequence[str], control: str | None) -> None:
    parts = part_names(name)
    drafting = [part for part in parts if with_drafter(part)]
    if len(parts) > 1 and (set(parts) & set(FOREIGN) or len(drafting) > 1 or len(set(parts)) < len(parts)):
        raise UsageError(
            "these proposers make no hybrid",
            got=name,
            expected="at most one proposer that needs a drafter, of the target's vocabulary, and n-gram or early-exit",
            source="--proposer",
        )
    if len(parts) > 1 and control == "fixed":
        raise UsageError(
            "a hybrid's cycles need a choice of the proposer",
            got=f"--control fixed with --proposer {name}",
            expected="--control adaptive",
            remedy="leave --control out",
        )
    if drafting and not any(drafting[0] in FITTING[kind] for kind in kinds):
        kind = f"kind {DRAFT_MODEL}" if drafting[0] in FITTING[DRAFT_MODEL] else "its kind"
        raise UsageError(
            "this proposer has no drafter that drafts so",
            got=f"--proposer {name} " + (f"with {' and '.join(kinds)}" if kinds else "without --drafter"),
            expected=_drafter_of(kind),
        )


def _drafter_of(kind: str) -> str:
    if kind == f"kind {DRAFT_MODEL}":
        return "--drafter with a language model's folder beside it"
    return f"--drafter with a drafter of {kind}"


def own_options(spec: MethodSpec, proposer: str) -> list[str]:
    """Return the given options that only this proposer reads."""
    return [option_of(name) for name in spec.given() if option_needs(name).proposer == proposer]


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
