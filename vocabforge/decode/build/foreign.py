"""Draft models with another vocabulary than the target's: how they draft, and over which bridge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...core.errors import DataError, MismatchError, UsageError
from ...corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from ...models.target.hf import check_tokenizer_fits
from ...vocab.overlap.bridge import Bridge, check_overlap, make_bridge
from ...vocab.overlap.overlap import Overlap, load_overlap
from ...vocab.subset.subset import VocabSubset
from ..proposers.draft_model import check_same_tokenizer
from ..proposers.registry import FOREIGN, with_drafter
from ..spec import MethodSpec, meaningless
from .grid import fitting, own_options

HIGH_OVERLAP = 0.8  # share of common tokens on both sides from which drafting only these loses little
SHORT_TOKENS = 1.5  # mean bytes of the drafter's tokens up to which string probabilities are cheap
_TOKENIZER_REMEDY = (
    "put the draft model's tokenizer.json into its folder, or name another folder: --drafter-tokenizer"
)


@dataclass(frozen=True)
class Way:
    """How one draft model drafts."""

    names: Sequence[str]  # of proposers
    bridge: Bridge | None = None  # between the vocabularies; None if they are the same
    reason: str | None = None  # why the proposer was chosen, if it was
    overlap: Path | None = None  # saved comparison from which the bridge was made
    tokenizer: bool = False  # whether the drafter's tokenizer comes from another folder

    @property
    def facts(self) -> str:
        """Phrase about the bridge, for tables and reports."""
        if self.bridge is None:
            return ""
        sides = self.bridge.target, self.bridge.drafter
        ours, theirs = (f"{len(side.text_ids):,}" for side in sides)
        return f"{len(self.bridge.pairs):,} tokens common to target ({ours}) and drafter ({theirs})"


def choose_proposer(
    shares: tuple[float, float], mean_bytes: float, sampled: bool, draft: MethodSpec | None = None
) -> tuple[str, str]:
    """Choose the proposer for a draft model with another vocabulary; return its name and the reason.

    TLI if nearly all tokens of both are common: it drafts target tokens at no further cost, with a known
    distribution. SLRS if the drafter's tokens are bytes or characters and the run samples: probabilities of
    strings are cheap then. SLEM otherwise: it drafts any text over any two vocabularies.

    Args:
        shares: common tokens as shares of the text tokens of the target and of the drafter.
        mean_bytes: mean length of the drafter's text tokens.
        draft: the requested settings; None: none.
    """
    draft = draft or MethodSpec()
    ours, theirs = shares
    common = f"the drafter has {ours:.0%} of the target's tokens"
    if min(shares) >= HIGH_OVERLAP:
        return "tli", f"{common}, and the target {theirs:.0%} of the drafter's"
    if min(shares) < ours:
        common = f"the target has {theirs:.0%} of the drafter's tokens"
    size = f"the drafter's tokens have {mean_bytes:.1f} bytes on average"
    if mean_bytes > SHORT_TOKENS:
        return "slem", f"{common} only, and {size}"
    if not sampled:
        return "slem", f"{common} only, and decoding is greedy"
    if draft.tree not in (None, "chain") or draft.tree_file or draft.topk or draft.total_nodes:
        return "slem", f"{common} only, and slrs, which drafts chains, has no tree as asked for"
    return "slrs", f"{common} only, and {size}"


def shares_of(bridge: Bridge) -> tuple[float, float]:
    """Return the common tokens as shares of the text tokens of the target and of the drafter."""
    return bridge.shared, len(bridge.pairs) / max(len(bridge.drafter.text_ids), 1)


class ForeignWays:
    """Chooses how each draft model of a run drafts.

    Args:
        target, rows: the target's tokenizer, and the rows of its LM head.
        draft: drafting settings; its proposer, drafter and overlap are not read.
        proposers, overlaps: those named by the user.
        several: more than one drafter, so that a name or an overlap may not apply to all.
        alone: one method drafts, so that each option is meant for it.
        bridges: existing bridges by drafter and overlap; new ones are added.
    """

    def __init__(
        self,
        target: TextTokenizer,
        rows: int,
        draft: MethodSpec,
        *,
        proposers: Sequence[str] = (),
        overlaps: Sequence[Path] = (),
        sampled: bool = False,
        several: bool = False,
        alone: bool = True,
        bridges: dict[tuple[str, Path | None], Bridge] | None = None,
    ) -> None:
        self._target, self._rows, self._several, self._alone = target, rows, several, alone
        self._draft, self._sampled, self._tokenizer = draft, sampled, draft.drafter_tokenizer
        self._chosen: list[str] = []  # by :func:`choose_proposer`
        self._named = [name for name in proposers if with_drafter(name)]
        self._overlaps = [(path, load_overlap(path)) for path in overlaps]
        self._unused = list(overlaps)
        self._tokenizer_used = False
        self._bridges = {} if bridges is None else bridges

    def of(self, path: Path, rows: int) -> Way:
        """Return how a draft model drafts, given its folder and the rows of its LM head.

        Raises:
            MismatchError: it cannot draft as requested.
            DataError: the bytes of a tokenizer's tokens cannot be determined from its decoder.
        """
        tokenizer = self._tokenizer_of(path, rows)
        lent = tokenizer is not None and not (path / "tokenizer.json").is_file()
        same = tokenizer is None or tokenizer.fingerprint == self._target.fingerprint
        if same or self._must_share_tokenizer():
            check_same_tokenizer(self._target, tokenizer, (self._rows, rows), source=path)
        names = fitting("draft-model", self._named, path)
        if same and not set(names) & set(FOREIGN):
            return Way(names, tokenizer=lent)
        if tokenizer is None:
            raise MismatchError(
                "the draft model's tokenizer must be known to draft so",
                got=f"--proposer {', '.join(names)}, and no tokenizer.json",
                source=path,
                remedy=_TOKENIZER_REMEDY,
            )
        saved, overlap = self._overlap_of(tokenizer)
        key = tokenizer.fingerprint, saved
        if key not in self._bridges:
            self._bridges[key] = make_bridge(self._target, tokenizer, (self._rows, rows), overlap=overlap)
        bridge = self._bridges[key]
        if same or self._named:
            usable = names if same else [name for name in names if name in FOREIGN]
            return Way(usable, bridge, overlap=saved, tokenizer=lent)
        mean_bytes = bridge.drafter.mean_bytes
        name, reason = choose_proposer(shares_of(bridge), mean_bytes, self._sampled, self._draft)
        if name == "slem" and self._draft.draft_sampling and self._alone:
            raise UsageError(
                "the proposer chosen has no use for drawn drafts",
                got=f"--draft-sampling; slem, chosen because {reason}",
                expected="a proposer whose distribution is known",
                source=path,
                remedy="name it: --proposer tli or --proposer slrs; or leave --draft-sampling out",
            )
        self._chosen.append(name)
        return Way([name], bridge, reason, saved, lent)

    def _must_share_tokenizer(self) -> bool:
        """Return whether ``draft-model`` is named and cannot be meant for another drafter."""
        parts = map(with_drafter, self._named)
        asked = [part for part in parts if part in ("draft-model", *FOREIGN)]
        return "draft-model" in asked and (asked == ["draft-model"] or not self._several)

    def _tokenizer_of(self, path: Path, rows: int) -> TextTokenizer | None:
        if (path / "tokenizer.json").is_file():
            return load_tokenizer(path, rows=rows)
        if self._tokenizer is None:
            return None
        self._tokenizer_used = True
        given = load_tokenizer(self._tokenizer, rows=rows)
        check_tokenizer_fits(
            given.vocab_size,
            rows,
            tokenizer=given.source,
            target=path,
            role="draft model",
            option="--drafter-tokenizer",
        )
        return given

    def _overlap_of(self, tokenizer: TextTokenizer) -> tuple[Path | None, Overlap | None]:
        """Return the saved overlap of these two tokenizers, in either order, and its folder."""
        wanted = self._target.fingerprint, tokenizer.fingerprint
        for folder, overlap in self._overlaps:
            made = overlap.a.fingerprint, overlap.b.fingerprint
            if made in (wanted, wanted[::-1]):
                self._unused = [path for path in self._unused if path != folder]
                return folder, overlap if made == wanted else turned(overlap)
        if self._overlaps and not self._several:
            check_overlap(self._overlaps[0][1], self._target, tokenizer)
        return None, None

    def check_used(self) -> None:
        """Reject an overlap, a tokenizer or an option of slrs that no draft model of the run uses."""
        own = own_options(self._draft, "slrs")
        if own and "slrs" not in (*self._named, *self._chosen):
            raise UsageError(
                f"{' and '.join(own)} {'mean' if len(own) > 1 else 'means'} nothing here",
                got=f"{' and '.join(dict.fromkeys(self._chosen)) or 'draft-model'}, chosen for the draft model",
                expected="a draft model that slrs drafts with",
                remedy="name it: --proposer slrs",
            )
        if self._unused:
            raise meaningless(
                "--overlap",
                ", ".join(map(str, self._unused)),
                "a comparison of the target's tokenizer with that of a draft model of this run",
                "vocabforge compare-vocab TARGET DRAFTER --output DIR",
            )
        if self._tokenizer is not None and not self._tokenizer_used:
            has = "each draft model's folder has its own tokenizer.json"
            raise meaningless("--drafter-tokenizer", has, "a draft model whose folder holds none")


def turned(overlap: Overlap) -> Overlap:
    """Swap the two vocabularies of an overlap."""
    pairs = overlap.pairs[:, ::-1]
    return replace(
        overlap,
        pairs=np.ascontiguousarray(pairs[np.argsort(pairs[:, 0])]),
        a=overlap.b,
        b=overlap.a,
        eos_pair=None if overlap.eos_pair is None else (overlap.eos_pair[1], overlap.eos_pair[0]),
    )


def restricted(bridge: Bridge, subset: VocabSubset, source: Path) -> Bridge:
    """Restrict a bridge's common tokens to a draft vocabulary (target ids); TLI drafts nothing else."""
    if subset.schedule:
        raise UsageError(
            "tli drafts with the same tokens at every step",
            got="a draft vocabulary with a schedule",
            source=source,
            remedy="select-vocab without --schedule",
        )
    kept = bridge.pairs[np.isin(bridge.pairs[:, 0], subset.ids)]
    if not len(kept):
        raise DataError(
            "the draft vocabulary and the drafter share no tokens",
            got=f"{len(subset.ids):,} tokens",
            expected=f"some of the {len(bridge.pairs):,} that target and drafter have in common",
            source=source,
        )
    ends = bridge.eos is not None and bridge.eos[0] in subset.ids
    return replace(bridge, pairs=kept, eos=bridge.eos if ends else None)
