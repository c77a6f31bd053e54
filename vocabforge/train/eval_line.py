"""The line that people see after an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def eval_line(
    step: int,
    steps: int,
    heldout: Mapping[str, Any],
    live: Mapping[str, Any] | None = None,
    *,
    best: bool = False,
) -> str:
    """One line: accuracy by draft step, causes of misses, accepted lengths simulated and decoded.

    Args:
        heldout: :meth:`TTTTotals.summary`.
        live: figures of the real decoder, None or empty without them.
        best: mark it as the best evaluation so far.
    """
    accuracy = " ".join(f"{100 * value:.0f}" for value in heldout["accuracy"])
    missed = f"wrong {heldout['drafter_wrong'][0]:.0%}"
    if any(heldout["out_of_vocabulary"]):
        missed += f", outside {heldout['out_of_vocabulary'][0]:.0%}"
    parts = [
        f"{'*' if best else ' '} {step:>{len(str(steps))}}/{steps}",
        f"accuracy {accuracy}% ({missed})",
        f"simulated {heldout['chain_accepted_length']:.2f}, {heldout['sampled_accepted_length']:.2f} at T=1",
    ]
    if live:
        decoded = f"decoded {live['accepted_length']:.2f}"
        if live.get("chain_accepted_length") is not None:
            decoded += f", chain {live['chain_accepted_length']:.2f}"
        parts.append(decoded)
        for name, head in (live.get("heads") or {}).items():
            if head.get("share_of_full") is not None:
                parts.append(f"{name.replace('_', '-')} {head['share_of_full']:.1%} of it")
        if live["identical"] != live["prompts"]:
            parts.append(f"IDENTICAL ONLY {live['identical']} OF {live['prompts']}")
    return " | ".join(parts)
