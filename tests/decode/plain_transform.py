"""The sampling transform once more, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vocabforge.decode.request import SamplingParams


def plain_transform(
    logits: Sequence[float], settings: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> list[float]:
    """The transform once more, token by token as its settings say it; the reference of the reference."""
    scores = []
    for token, logit in enumerate(logits):
        if token in prompt or token in output:
            logit = logit / settings.repetition_penalty if logit > 0 else logit * settings.repetition_penalty
        count = list(output).count(token)
        scores.append(logit - settings.presence_penalty * (count > 0) - settings.frequency_penalty * count)
    best = max(scores)
    if settings.temperature == 0:
        return [float(token == scores.index(best)) for token in range(len(scores))]
    parts = [math.exp((score - best) / settings.temperature) for score in scores]
    order = sorted(range(len(parts)), key=lambda token: (-parts[token], token))
    kept = order[: settings.top_k or len(order)]
    total, mass, nucleus = sum(parts[token] for token in kept), 0.0, []
    for token in kept:
        if mass >= settings.top_p * total:
            break
        nucleus.append(token)
        mass += parts[token]
    return [
        part if token in nucleus and part >= settings.min_p * parts[order[0]] else 0.0
        for token, part in enumerate(parts)
    ]
