"""Headline figures of a training run, and how its columns are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Series = Mapping[str, Sequence[Any]]
Results = Mapping[str, Any]


def reduced(results: Results) -> bool:
    """Whether some target mass ever lay outside the draft vocabulary."""
    lost = results["heldout"].get("lost_outside") or results["heldout"].get("out_of_vocabulary") or []
    return any(max(row, default=0.0) > 1e-9 for row in lost if row)


def last_row(series: Series) -> dict[str, Any] | None:
    """The last entry of every column; None where there is none."""
    return {name: values[-1] for name, values in series.items()} if series["step"] else None


def column(series: Series, name: str, place: int | None = None) -> list[Any]:
    """A column, or one draft step of a column of lists; None where there is none."""
    values = series.get(name) or [None] * len(series["step"])
    if place is None:
        return list(values)
    return [value[place] if value is not None and place < len(value) else None for value in values]


def cards(results: Results) -> list[tuple[str, str, str, str]]:
    """Headline figures: what, value, note, class."""
    heldout, live = results["heldout"], results["live"]
    found = []
    lengths = [value for value in column(live, "accepted_length") if value is not None]
    if lengths:
        best = max(range(len(lengths)), key=lambda place: lengths[place])
        note = "tokens that the real decoder commits a cycle, on held-out prompts"
        if lengths[best] > lengths[-1]:
            note += f"; best {lengths[best]:.2f} at step {live['step'][best]:,}"
        found.append(("Accepted length", f"{lengths[-1]:.2f}", note, ""))
    last = last_row(heldout)
    if last and last.get("chain_accepted_length") is not None:
        note = "predicted from held-out text for a greedy chain"
        if last.get("sampled_accepted_length") is not None:
            note += f"; {last['sampled_accepted_length']:.2f} at temperature 1"
        found.append(("Simulated length", f"{last['chain_accepted_length']:.2f}", note, ""))
    if last and last.get("accuracy"):
        note = "of first draft tokens are the target's, over the whole vocabulary"
        if last.get("out_of_vocabulary") and reduced(results):
            note += f"; {last['out_of_vocabulary'][0]:.1%} lie outside the draft vocabulary"
        found.append(("Accuracy", f"{last['accuracy'][0]:.1%}", note, ""))
    shown = last_row(live)
    if shown and shown.get("prompts"):
        same = shown.get("identical") == shown["prompts"]
        found.append(
            (
                "Lossless",
                f"{shown.get('identical')} of {shown['prompts']}",
                "live outputs equal plain decoding, token by token",
                "good" if same else "bad",
            )
        )
    return found
