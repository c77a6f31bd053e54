"""What another draft vocabulary changes: coverage of texts, and the accepted length on prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from ..decode.policies import tree_settings
from ..decode.proposers import tree_proposer
from ..decode.tree import TreeSettings
from ..models.drafter import Drafter
from ..models.heads import exact_head
from ..models.target_load import dtype_name
from .acceptance import AcceptanceMeter, Accepted, length_ratio
from .results import Figure
from .state_pairs import onto
from .wide_tables import figure_cell, simple_table

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Counts = npt.NDArray[np.int64]

OUTPUTS = "answers"  # the target's own, to the prompts, as a text whose coverage is taken

# Versions of a drafter, as they are called in tables and records.
BEFORE, AFTER, FITTED, HEALED = "before", "after", "fitted", "healed"


@dataclass(frozen=True)
class TextCoverage:
    """Share of a text's tokens inside the old and the new draft vocabulary.

    Attributes:
        tokens: counted.
    """

    tokens: int
    before: float
    after: float


def text_coverage(before: Counts, after: Counts, counts: Counts) -> TextCoverage:
    """Coverage of counts (V,) by two lists of ids; ids that were not counted at all count as none."""
    total = int(counts.sum())

    def share(ids: Counts) -> float:
        return int(counts[ids[ids < len(counts)]].sum()) / total if total else 0.0

    return TextCoverage(total, share(before), share(after))


@dataclass(frozen=True)
class Measured:
    """A drafter's accepted length.

    Attributes:
        rows: of its head.
        accepted: on the prompts.
        of_before: its accepted length over that of the drafter as it was, paired over prompts; None for that one.
    """

    rows: int
    accepted: Accepted
    of_before: Figure | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values for the manifest."""
        against = None if self.of_before is None else self.of_before.model_dump(mode="json")
        return {"rows": self.rows, **self.accepted.figures, "of_before": against}


class RevocabMeter:
    """Measures versions of one drafter with one draft tree, the first of them the drafter as it was.

    Args:
        meter: target and prompts.
        smallest: rows of the smallest head that will be measured; the tree is no wider.
        max_steps: of the drafter; None where there is no bound.
        tree: depth, topk and nodes as a user gave them; None takes the default.
        spare: prompts that are not measured on.
    """

    def __init__(
        self,
        meter: AcceptanceMeter,
        smallest: int,
        max_steps: int | None,
        tree: tuple[int | None, int | None, int | None] = (None, None, None),
        spare: Sequence[Sequence[int]] = (),
    ) -> None:
        self.meter, self.spare = meter, spare
        depth, topk, nodes = tree
        width = min(TreeSettings().topk, smallest) if topk is None else topk
        self.tree = tree_settings(depth, width, nodes, max_steps)
        self.measured: dict[str, Measured] = {}

    def measure(self, name: str, drafter: Drafter) -> Measured:
        """Decode the prompts with a version of the drafter; the first call sets what others are compared with."""
        model = self.meter.model
        copied = onto(drafter, model)
        accepted = self.meter.measure(tree_proposer(model, copied, exact_head(copied), self.tree))
        first = next(iter(self.measured.values()), None)
        against = None if first is None else length_ratio(accepted, first.accepted)
        self.measured[name] = Measured(len(drafter.target_ids), accepted, against)
        return self.measured[name]

    def output_counts(self, vocab_size: int) -> Counts:
        """(V,) tokens of the target's own greedy answers to the prompts."""
        return self.meter.plain_counts(vocab_size)

    def to_json(self) -> dict[str, Any]:
        """Prompts, tree, and every version's figures."""
        return {
            "prompts": len(self.meter.prompts.prompts),
            "new_tokens": self.meter.new,
            "tree": asdict(self.tree),
            "dtype": dtype_name(self.meter.model.dtype),
            "versions": {name: one.to_json() for name, one in self.measured.items()},
        }


def helps(corrected: Accepted, uncorrected: Accepted) -> bool:
    """Whether a version's accepted length is above another's by more than chance: the whole interval is."""
    low = length_ratio(corrected, uncorrected).low
    return low is not None and low > 1.0


@dataclass
class RevocabRecord:
    """Everything that was found, as the manifest keeps it and the table shows it.

    Attributes:
        head: :class:`~vocabforge.export.revocab.HeadChange`. drift: of the drafter's own rows, None without any.
        missing: where added rows came from. eos: end tokens inside before and after.
        coverage: by text. accepted: :meth:`RevocabMeter.to_json`, None without prompts.
        healing: None without one.
    """

    head: dict[str, Any]
    drift: dict[str, Any] | None
    missing: dict[str, Any]
    eos: dict[str, list[int]]
    coverage: dict[str, TextCoverage] = field(default_factory=dict)
    accepted: dict[str, Any] | None = None
    healing: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values for the manifest."""
        return asdict(self)

    def lines(self) -> list[str]:
        """What was found, in sentences."""
        return [*_head_lines(self), *_missing_lines(self), *_accepted_lines(self)]


def _head_lines(record: RevocabRecord) -> list[str]:
    head, drift, lost = record.head, record.drift, record.eos["lost"]
    lines = [f"{head['kept']:,} rows kept, {head['dropped']:,} dropped, {head['added']:,} added."]
    if not head["own_after"]:
        lines.append("Every row is the target's: the drafter shares the target's head.")
    if drift is not None:
        cosine, scale = drift["cosine"], drift["scale"]
        lines.append(
            f"The drafter's own rows against the target's: cosine {cosine['median']:.3f} "
            f"({cosine['lowest']:.3f} to {cosine['highest']:.3f}), length {scale['median']:.2f} of the target's "
            f"({scale['lowest']:.2f} to {scale['highest']:.2f}), {drift['untouched']:,} of {drift['rows']:,} untouched."
        )
    if lost:
        lines.append(
            f"Warning: the end tokens {', '.join(map(str, lost))} are in no draft any more: the last cycle of every "
            "answer drafts in vain. Use a draft vocabulary with them (select-vocab --target forces them)."
        )
    elif outside := record.eos["outside"]:
        lines.append(
            f"End tokens outside of the draft vocabulary, as before: {', '.join(map(str, outside))}."
        )
    return lines


def _missing_lines(record: RevocabRecord) -> list[str]:
    missing, fit = record.missing, record.missing["fit"]
    if missing["wanted"] == "target":
        return []
    if missing["used"] == "none":
        return ["No row is missing: nothing was fitted."]
    if fit is None:
        return ["Nothing was fitted: the drafter has no rows of its own."]
    if fit["form"] == "none":
        return ["No correction predicts the drafter's rows better than the target's do: none is made."]
    of = "variance of states" if fit["form"] == "states" else "squared distance to rows"
    how = f"The correction ({fit['form']}) leaves {fit['left']:.0%} of the {of} held out"
    if record.accepted is None:
        return [f"{how}; without --prompts it is taken unmeasured."]
    if missing["used"] != "target":
        return [f"{how}, and more is accepted with it: it is kept."]
    return [
        f"{how}, but does not raise the accepted length for sure: the target's rows are taken as they are."
    ]


def _accepted_lines(record: RevocabRecord) -> list[str]:
    versions: Mapping[str, Any] = (record.accepted or {}).get("versions", {})
    lines = [
        f"Warning: {name}: {one['prompts'] - one['identical']} of {one['prompts']} outputs are not plain "
        "decoding's. Near ties of the target's logits may do that; vocabforge eval tells them apart."
        for name, one in versions.items()
        if one["identical"] < one["prompts"]
    ]
    if record.healing is not None and versions:
        unhealed = versions[FITTED if record.missing["used"] in ("rows", "states") else AFTER]
        healed = versions[HEALED]
        if healed["accepted_length"] < unhealed["accepted_length"]:
            start = f"{record.healing['run']}/start"
            lines.append(
                f"Warning: healing lowered the accepted length; the drafter without it is in {start}. "
                "Try a smaller optim.lr, or more data."
            )
    return lines


def end_tokens(before: torch.Tensor, after: torch.Tensor, known: Sequence[int]) -> dict[str, list[int]]:
    """End tokens by whether two lists of target ids hold them.

    Returns:
        ``kept`` in both, ``lost`` before alone, ``gained`` after alone, ``outside`` of both.
    """
    had, has = set(before.tolist()), set(after.tolist())
    return {
        "kept": [token for token in known if token in had and token in has],
        "lost": [token for token in known if token in had and token not in has],
        "gained": [token for token in known if token not in had and token in has],
        "outside": [token for token in known if token not in had and token not in has],
    }


def revocab_table(record: RevocabRecord, title: str) -> Table:
    """One line a version: rows, coverage of each text, accepted length, identical outputs."""
    from rich.text import Text

    versions: Mapping[str, Any] = (record.accepted or {}).get("versions", {})
    names = list(versions) or [BEFORE, AFTER]
    table = simple_table(title)
    table.add_column("head", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True)
    for text in record.coverage:
        table.add_column(Text.assemble("coverage,\n", text), justify="right")
    if versions:
        for column in ("accepted\nlength", "of before", "identical"):
            table.add_column(column, justify="right", no_wrap=True)
    for name in names:
        first = name == names[0]
        rows = record.head["before" if first else "after"]
        shares = [one.before if first else one.after for one in record.coverage.values()]
        cells: list[Text | str] = [f"{100 * share:.2f}%" for share in shares]
        if versions:
            cells += _accepted_cells(versions[name], first)
        table.add_row(name, f"{rows:,}", *cells)
    if versions:
        table.caption = "under a figure: its 95% interval over prompts"
        table.caption_justify = "left"
    return table


def _accepted_cells(figures: Mapping[str, Any], first: bool) -> list[Text | str]:
    length = Figure(value=figures["accepted_length"], sd=None, low=figures["low"], high=figures["high"])
    against = "–" if first else figure_cell(Figure(**figures["of_before"]), 3)
    return [figure_cell(length, 2), against, f"{figures['identical']} of {figures['prompts']}"]
