"""Tables of what a study was held against: claims, its goal, tune, the decoder itself, coverage."""

from __future__ import annotations

from .joined import COLUMNS
from .names import COLUMN_NAMES
from .results import Checked, Decoded, StudyResults
from .table_parts import DASH, KINDS, Part, percent
from .tuning import SHARE
from .verdict import place


def goal_part(results: StudyResults) -> Part:
    """The goal with every shape at every temperature."""
    rows = []
    for goal in results.goals:
        best = results.method(goal.method)
        cell = None if best is None else best.at(goal.shape, temperature=goal.temperature)
        rows.append(
            [
                place(goal),
                "none" if best is None else best.label,
                DASH if cell is None else percent(cell.share.value),
                DASH if best is None else percent(best.exact),
                DASH if goal.claim.value is None or best is None else f"{goal.claim.value:.3f}",
                KINDS[goal.claim.held],
            ]
        )
    columns = ["shape", "fastest that keeps enough", "kept", "exact logits", "over static 32,768", "goal"]
    note = ""
    if results.goals:
        claim = results.goals[0].claim
        note = f"{claim.claim[:1].upper()}{claim.claim[1:]}. Share and exact logits are measured; speeds are predicted."
    return Part("goal", "The goal", note, columns, rows, 2)


def claim_part(results: StudyResults) -> Part:
    """What was published, and what was found here."""
    rows = [[one.source, KINDS[one.held], one.claim, one.published, one.found] for one in results.claims]
    held = sum(one.held is True for one in results.claims)
    failed = sum(one.held is False for one in results.claims)
    note = (
        f"{held} held, {failed} not held, {len(rows) - held - failed} not judged. Papers measured other targets, "
        "drafters and machines: a claim holds where this study's figure reaches the published one; a plain order holds "
        "where the difference over seeds, paired, is more than two standard errors, and is not judged where it is less."
    )
    return Part("claims", "Claims", note, ["source", "verdict", "claim", "published", "found here"], rows, 5)


def tuned_part(results: StudyResults) -> Part:
    """What ``tune`` would recommend, and how it ranks."""
    found = results.recommended
    if found is None:
        return Part("tuned", "Recommended by tune", "", [], [])
    best = results.method(found.method)
    name = "plain decoding" if best is None else f"{best.label}, {found.shape}"
    shown = [*COLUMNS, SHARE]
    places = [f"{found.places[one]}" if one in found.places else DASH for one in shown]
    columns = ["recommended", *(COLUMN_NAMES.get(one, "share of full, its shape") for one in shown)]
    note = (
        f"Place of tune's recommendation for this machine among {found.of:,} rows (by share: among those of its "
        f"shape). {' '.join(found.why)}"
    )
    keys = [] if best is None else [best.key]
    return Part("tuned", "Recommended by tune", note, columns, [[name, *places]], keys=keys)


def coverage_part(results: StudyResults) -> Part:
    """Share of held-out tokens inside the static vocabularies."""
    covered = [one for one in results.methods if one.coverage]
    texts = results.coverage_texts
    rows = [[one.label, *(percent(one.coverage.get(text)) for text in texts)] for one in covered]
    note = (
        "Measured: share of tokens that lie inside a static draft vocabulary, of the target's answers to training "
        "prompts (what VocabTrim counted, so not held out for it) and of held-out texts by source."
    )
    keys = [one.key for one in covered]
    return Part("coverage", "Coverage", note, ["draft vocabulary", *texts], rows, keys=keys)


def checked_part(results: StudyResults) -> Part:
    """The decoder itself beside plain decoding and the replay."""
    checked = results.checked
    if checked is None:
        return Part("lossless", "Losslessness", "", [], [])
    rows = [_decoded_row(mode) for mode in checked.modes]
    columns = ["decoded", "outputs", "identical", "near-tied", "faults", "not judged", "cycles as replayed"]
    note = (
        f"Measured: the real decoder with every method on {checked.questions:,} questions ({checked.where}), its "
        "outputs beside plain decoding's, token by token. Near-tied: the target's own rounding decides between two "
        "tokens. The last column: cycles that commit as many tokens as the replay foretold, of outputs that begin "
        "as the replayed answers do."
    )
    return Part("lossless", "Losslessness", note, columns, rows)


def _decoded_row(mode: Decoded) -> list[str]:
    counts = [mode.outputs, mode.identical, mode.near_tied, mode.faults, mode.not_judged]
    cycles = f"{mode.equal_cycles:,} of {mode.cycles:,} ({mode.compared:,} outputs)" if mode.cycles else DASH
    return [mode.mode, *(f"{count:,}" for count in counts), cycles]


def decoded_part(results: StudyResults) -> Part:
    """Accepted lengths of the decoder itself, the dynamic tree's among them."""
    checked = results.checked
    modes = [] if checked is None else [mode.mode for mode in checked.modes]
    rows, keys = [], []
    for one in results.methods:
        found = {} if checked is None else checked.lengths.get(one.key, {})
        if found:
            keys.append(one.key)
            rows.append([one.label, *(f"{found[mode]:.2f}" if mode in found else DASH for mode in modes)])
    note = "" if checked is None else _decoded_note(checked)
    return Part(
        "decoded",
        "Accepted lengths of the decoder itself",
        note,
        ["draft vocabulary", *modes],
        rows,
        keys=keys,
    )


def _decoded_note(checked: Checked) -> str:
    own = checked.settings
    return (
        f"Measured by decoding {checked.questions:,} questions: tokens that a cycle commits, mean over the first "
        f"{own.get('seeds', 1)} of the seeds. Dynamic tree: {own.get('tree_nodes')} nodes, "
        f"{own.get('tree_topk')} children a node, depth {own.get('tree_depth')}."
    )
