"""What the decoder did beside what it must do: plain decoding's outputs, and the replay's cycles."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..decode.request import Generation, SamplingParams
from ..decode.sampling import SeededChance, TokenHistory, target_weights
from ..decode.shapes import TreeShape
from ..evaluate.divergence import MOST_JUDGED, TOLERANCE
from ..evaluate.replay_types import Ranks
from ..evaluate.replay_walk import accepted, cut_lengths
from ..evaluate.rounding import Evidence, OutputPosition, ask_target
from ..models.lean import LeanModel
from .answers import Answer

NEAR_TIED, FAULT, NOT_JUDGED = "near-tied", "fault", "not judged"


@dataclass(frozen=True)
class Asked:
    """One request of the sample: a question's stored answer, and how its tokens are chosen."""

    answer: Answer
    sampling: SamplingParams


def compare_outputs(
    made: Sequence[Sequence[int]],
    expected: Sequence[Sequence[int]],
    asked: Sequence[Asked],
    model: LeanModel,
    stops: Collection[int],
) -> dict[str, Any]:
    """Outputs beside those that they should be.

    Returns:
        ``outputs``, ``identical`` of them, and ``different``: of the others the set, the question, the place of the
        first difference (from 0), both tokens (None where an output had ended) and a judgement: ``near-tied`` where
        rounding alone decides between the two, else ``fault``.
    """
    different: list[dict[str, Any]] = []
    for one, other, request in zip(made, expected, asked, strict=True):
        if list(one) == list(other):
            continue
        at = first_difference(one, other)
        wanted, got = (ids[at] if at < len(ids) else None for ids in (other, one))
        place = OutputPosition(request.answer.continuation.prompt, tuple(other[:at]))
        verdict = {"judgement": NOT_JUDGED, "reason": f"only {MOST_JUDGED} are judged"}
        if len(different) < MOST_JUDGED:
            verdict = judge(model, place, (wanted, got), request.sampling, stops)
        different.append(
            {
                "set": request.answer.set,
                "question": request.answer.question,
                "position": at,
                "expected": wanted,
                "got": got,
                **verdict,
            }
        )
    return {"outputs": len(made), "identical": len(made) - len(different), "different": different}


def compare_cycles(
    made: Sequence[Generation], asked: Sequence[Asked], ranks: Sequence[Ranks], shape: TreeShape
) -> dict[str, Any]:
    """Cycles of a fixed shape beside those of the replay that begin at the same tokens.

    Args:
        ranks: of each answer (tokens - 1, levels), as the replay gives them. Outputs that are no beginning of the
            stored answer are other texts, and left out.

    Returns:
        ``outputs`` that were compared, their ``cycles``, ``equal`` of them, ``accepted_length`` of the decoder and
        ``replayed_length`` over the same cycles' starts, and ``different``: set, question, ``start`` (number of the
        token that the cycle began with), ``decoded`` and ``replayed`` tokens.
    """
    compared, cycles, decoded, replayed = 0, 0, 0, 0
    different: list[dict[str, Any]] = []
    for one, request, rows in zip(made, asked, ranks, strict=True):
        count = len(one.token_ids)
        if tuple(one.token_ids) != request.answer.continuation.tokens[:count]:
            continue
        compared += 1
        lengths = accepted(rows[: count - 1], shape) + 1
        start = 0
        for length in cut_lengths(one.accept_lengths, count - 1):
            foretold = min(int(lengths[start]), count - 1 - start)
            if foretold != length:
                where = {"set": request.answer.set, "question": request.answer.question, "start": start}
                different.append({**where, "decoded": length, "replayed": foretold})
            cycles, decoded, replayed = cycles + 1, decoded + length, replayed + foretold
            start += length
    return {
        "outputs": compared,
        "cycles": cycles,
        "equal": cycles - len(different),
        "accepted_length": decoded / cycles if cycles else None,
        "replayed_length": replayed / cycles if cycles else None,
        "different": different,
    }


def accepted_length(made: Sequence[Generation]) -> dict[str, Any]:
    """``accepted_length``: mean tokens that a cycle commits, the last one cut at its output's end, and ``cycles``."""
    lengths = [length for one in made for length in cut_lengths(one.accept_lengths, len(one.token_ids) - 1)]
    return {"accepted_length": sum(lengths) / len(lengths) if lengths else None, "cycles": len(lengths)}


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Place of the first token that differs, or the length of the shorter one."""
    return next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def judge(
    model: LeanModel,
    place: OutputPosition,
    tokens: tuple[int | None, int | None],
    sampling: SamplingParams,
    stops: Collection[int],
) -> dict[str, Any]:
    """Whether the target's own rounding explains that two outputs part.

    Greedy tokens must both lie within ``TOLERANCE`` noises of the largest logit; drawn ones must both be what the
    request's random number chooses where the law's cumulated heights are moved by as much.

    Args:
        tokens: plain decoding's and the method's; None where an output had ended.
    """
    wanted, got = tokens
    if wanted is None or got is None:
        after = "a stop token" if place.common and place.common[-1] in stops else "the other's end"
        return {"judgement": FAULT, "reason": f"one output goes on behind {after}"}
    with torch.inference_mode():
        evidence = ask_target(model, place, sampling)
    allowed = TOLERANCE * evidence.noise
    found = {"noise": evidence.noise, "gap": float(evidence.scores[wanted] - evidence.scores[got])}
    if not evidence.sound:
        reason = "the target's own passes over the same tokens differ by more than rounding explains"
        return {"judgement": FAULT, "reason": reason, **found}
    near = _near_argmax if sampling.greedy else _near_draw
    if all(near(evidence, place, token, sampling, allowed) for token in (wanted, got)):
        return {"judgement": NEAR_TIED, "reason": f"rounding moves logits by {evidence.noise:.3g}", **found}
    return {"judgement": FAULT, "reason": f"rounding explains {allowed:.3g}", **found}


def _near_argmax(
    evidence: Evidence, place: OutputPosition, token: int, sampling: SamplingParams, allowed: float
) -> bool:
    return bool(evidence.scores.max() - evidence.scores[token] <= allowed)


def _near_draw(
    evidence: Evidence, place: OutputPosition, token: int, sampling: SamplingParams, allowed: float
) -> bool:
    """Whether the request's number for this place falls into the token's part of [0, 1], widened on both sides."""
    history = TokenHistory(place.prompt, len(evidence.scores))
    history.add(place.common)
    weights = target_weights(evidence.scores, sampling, history, ())
    heights = weights.cumsum() / weights.sum()
    low = max(0.0, float(heights[token] - weights[token] / weights.sum()) - allowed)
    high = min(1.0, float(heights[token]) + allowed)
    return not _number_below(low, place, sampling) and _number_below(high, place, sampling)


def _number_below(height: float, place: OutputPosition, sampling: SamplingParams) -> bool:
    """Whether the random number that chooses the token at this place is below a height."""
    chance = SeededChance(sampling.seed)
    for _ in place.common:  # each took one
        chance.happens(1, 1)
    return chance.happens(height, 1)
