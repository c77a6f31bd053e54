"""How methods are made: what a user may ask for, and which of it each proposer gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core.errors import UsageError
from .build_heads import HeadRequest
from .draft import Wrap
from .proposers import ALONE, FITTING, FOREIGN, PROPOSERS, DraftOptions
from .verifiers import chosen_verifier


@dataclass(frozen=True)
class BuildOptions:
    """How methods are made.

    Attributes:
        tokenizer: checked against the target; None: the target's folder.
        proposers: names of ``PROPOSERS``: those without a drafter become methods of their own, the others say how
            the drafters draft; none: each drafter's default.
        draft: tree, sampling, early exit and n-gram settings.
        heads: draft-head artefacts; each goes to the drafter it was trained on, as ``drafter+head``.
        control: ``fixed`` or ``adaptive``.
        wrap: makes passes faster, see ``compiled.py``.
        sampled: the temperature is above 0; it decides between proposers where none is named.
        overlaps: saved comparisons of the target's tokenizer with those of draft models.
        drafter_tokenizer: folder, for draft models without a tokenizer of their own.
        verifier: name of ``VERIFIERS`` for what is drawn; None chooses by tree.
    """

    tokenizer: Path | None = None
    device: str | None = None
    dtype: str = "float32"
    proposers: Sequence[str] = ()
    draft: DraftOptions = field(default_factory=DraftOptions)
    heads: HeadRequest | None = None
    control: str = "fixed"
    wrap: Wrap | None = None
    sampled: bool = False
    overlaps: Sequence[Path] = ()
    drafter_tokenizer: Path | None = None
    verifier: str | None = None


def check_options(options: BuildOptions, kinds: Sequence[str]) -> None:
    """Refuse names that there are not, and options that mean nothing in the run.

    Args:
        kinds: of the run's drafters.

    Raises:
        UsageError: one of these.
    """
    _check_names(options.proposers)
    if options.verifier is not None:
        chosen_verifier(options.verifier, sampled=options.sampled)
    for name in options.proposers:
        if name not in ALONE and not any(name in FITTING[kind] for kind in kinds):
            raise UsageError(
                "this proposer has no drafter that drafts so",
                got=f"--proposer {name} " + (f"with {' and '.join(kinds)}" if kinds else "without --drafter"),
                expected="--drafter with a language model's folder beside it"
                if name in FITTING[DRAFT_MODEL]
                else "--drafter DIR of its kind beside it",
            )
    _check_used(options, kinds)
    if options.heads is not None and options.heads.given and set(kinds) <= {DRAFT_MODEL}:
        raise UsageError("--head belongs to a drafter", expected="--drafter with a trained one beside it")
    for option, value in (("overlap", options.overlaps), ("drafter-tokenizer", options.drafter_tokenizer)):
        if value and DRAFT_MODEL not in kinds:
            raise UsageError(
                f"--{option} means nothing here",
                got="no draft model",
                expected="--drafter with a language model's folder beside it",
            )
    drafts = bool(kinds) or any(name in ALONE for name in options.proposers)
    given = [option_of(name) for name, value in vars(options.draft).items() if is_given(value)]
    given += ["--control"] if options.control != "fixed" else []
    given += ["--verifier"] if options.verifier is not None else []
    if given and not drafts:
        raise UsageError(
            "an option of drafting means nothing here",
            got=f"{', '.join(given)}, and nothing drafts",
            expected="--drafter DIR, or --proposer n-gram or early-exit, beside it",
        )


def _check_names(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in PROPOSERS]
    if unknown:
        raise UsageError(
            "there is no such proposer",
            got=", ".join(unknown),
            expected=", ".join(PROPOSERS),
            source="--proposer",
        )


DRAFT_MODEL = "draft-model"

# field of ``DraftOptions`` that one proposer alone reads -> that proposer
_OWN = {"layers": "early-exit", "ngram": "n-gram", "look_ahead": "slrs", "single": "slrs"}

# field of ``DraftOptions`` -> its option, where the command line says otherwise
_OPTIONS = {"sample": "draft-sampling", "layers": "exit-layers", "single": "single-token"}


def is_given(value: object) -> bool:
    """Whether an option of ``DraftOptions`` was given; 0 was."""
    return value is not None and value is not False


def option_of(name: str) -> str:
    """What a field of ``DraftOptions`` is called on the command line."""
    return "--" + _OPTIONS.get(name, name.replace("_", "-"))


def parse_ngram(text: str | None) -> tuple[int, int] | None:
    """``MIN:MAX``, or ``N`` for both.

    Raises:
        UsageError: not of this form.
    """
    if text is None:
        return None
    parts = text.split(":")
    if (
        len(parts) > 2
        or not all(part.isdecimal() for part in parts)
        or not 0 < int(parts[0]) <= int(parts[-1])
    ):
        raise UsageError(
            "the sizes of n-grams cannot be read", got=text, expected="MIN:MAX, such as 1:4", source="--ngram"
        )
    return int(parts[0]), int(parts[-1])


def own_options(draft: DraftOptions, proposer: str) -> list[str]:
    """The given options that only this proposer reads."""
    return [option_of(name) for name, of in _OWN.items() if of == proposer and is_given(getattr(draft, name))]


def _check_used(options: BuildOptions, kinds: Sequence[str]) -> None:
    """Refuse an option of a proposer that is not in the run; a draft model may yet turn out to draft so."""
    open_choice = DRAFT_MODEL in kinds and set(options.proposers) <= set(ALONE)
    for proposer in dict.fromkeys(_OWN.values()):
        if proposer in options.proposers or (open_choice and proposer in FOREIGN):
            continue
        for option in own_options(options.draft, proposer):
            raise UsageError(
                f"{option} means nothing here",
                got=", ".join(options.proposers) or "no named proposer",
                expected=f"--proposer {proposer} beside it",
            )


def options_of(name: str, draft: DraftOptions, several: bool) -> DraftOptions:
    """A proposer's options: without those of another one, and where several draft without those it has no use for."""
    usual = DraftOptions()
    others = {field: getattr(usual, field) for field, proposer in _OWN.items() if proposer != name}
    draft = replace(draft, **others)
    if not several:
        return draft
    if name in ("n-gram", "slem"):
        draft = replace(draft, sample=False)
    if name in ("n-gram", "slrs"):
        draft = replace(draft, tree_file=None)
        if name == "slrs" or draft.tree != "dynamic":
            draft = replace(draft, tree=None, topk=None, total_nodes=None)
    return draft


def left_out(name: str, draft: DraftOptions) -> list[str]:
    """The given options that a proposer drafts without where several draft, but for those of one proposer alone."""
    usual, kept = DraftOptions(), options_of(name, draft, several=True)
    lost = [
        field for field in vars(usual) if field not in _OWN and getattr(kept, field) != getattr(draft, field)
    ]
    values = {field: getattr(draft, field) for field in lost}
    return [option_of(field) + ("" if value is True else f" {value}") for field, value in values.items()]


def fitting(kind: str, named: Sequence[str], path: Path) -> list[str]:
    """The named proposers that can draft with this kind of drafter; its default where none is named.

    Args:
        kind: of ``FITTING``.
        path: the drafter's folder, for errors.

    Raises:
        UsageError: none of the named ones can.
    """
    wanted = [name for name in named if name not in ALONE]
    fitting = FITTING[kind]
    chosen = [name for name in wanted if name in fitting]
    if wanted and not chosen:
        raise UsageError(
            "none of the proposers can draft with this drafter",
            got=f"--proposer {', '.join(wanted)} with a drafter of kind {kind}",
            expected=" or ".join(fitting),
            source=path,
        )
    return chosen or [fitting[0]]
