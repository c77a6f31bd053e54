"""Judge why an output differs from plain decoding: the target's rounding, or a fault.

The target's logits are computed at the position where two outputs diverge; see ``rounding.py``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...core.errors import DataError, VocabForgeError
from ...core.progress import ProgressBar
from ...models.target.interface import Target
from ..benchmarks import Question
from ..results.schema import DivergenceRow
from ..results.settings import RunSettings
from ..run.prompts import PromptBuilder, system_of
from .rounding import Evidence, OutputPosition, ask_target

if TYPE_CHECKING:
    from ...corpus.tokenizer.tokenizer import TextTokenizer
    from ..results.answers import MethodRows

MOST_JUDGED = 50  # judging costs as much as generating up to the divergence again
# Two logits that each move by the noise can differ by twice the noise; doubled, since other cuts may add
# more.
TOLERANCE = 4

# Position and tokens -> the row's fields that judging fills.
Verdicts = dict[tuple[OutputPosition, int | None, int | None], dict[str, Any]]


def judge(
    divergences: Sequence[DivergenceRow],
    questions: Sequence[Question],
    baseline: MethodRows,
    tokenizer: TextTokenizer,
    settings: RunSettings,
    target: Target,
    *,
    most: int = MOST_JUDGED,
    known: Verdicts | None = None,
) -> list[DivergenceRow]:
    """Return the divergences of a method in one run with texts, judgements and evidence.

    Sampled outputs are not judged. For the meaning of judgements see ``results.schema.DivergenceRow``.

    Args:
        baseline: plain decoding's rows of that run.
        target: the target with the weights, dtype and device it decoded with.
        most: maximum number of judgements, including those in ``known``; the others stay ``not judged``.
        known: verdicts by position, read and extended: repeated greedy runs diverge at the same positions.
    """
    asked = {question.question_id: question for question in questions}
    answers = {row["question_id"]: row["choices"][0] for row in baseline.answers}
    details = {row["question_id"]: row["choices"][0] for row in baseline.details}
    rows = [_described(row, details[row.question_id], tokenizer) for row in divergences]
    if not rows or not settings.sampling.greedy:
        return [row.model_copy(update={"reason": "sampled outputs are not judged"}) for row in rows]
    known, judged = {} if known is None else known, []
    with ProgressBar("Judging differing outputs", len(rows), "divergences") as bar:
        for row in rows:
            number = row.question_id
            try:
                place = _place(row, asked[number], answers[number], details[number], tokenizer, settings)
                key = place, row.expected, row.got
                if key not in known and len(known) < most:
                    known[key] = _verdict(row, place, tokenizer.eos_ids, settings, target)
                found = known.get(key, {"reason": f"only {most} divergences of a method are judged"})
            except (VocabForgeError, RuntimeError) as error:  # such as out of memory
                first, *_ = (str(error) or type(error).__name__).splitlines()
                found = {"reason": f"the target could not be asked: {first}"}
            judged.append(row.model_copy(update=found))
            bar.update(1)
    return judged


def _described(row: DivergenceRow, details: Mapping[str, Any], tokenizer: TextTokenizer) -> DivergenceRow:
    """Return the row with the texts of its tokens; special tokens are given by name."""
    before = details["token_ids"][row.turn][: row.position][-1:]

    def text(token: int | None) -> str | None:
        if token is None:
            return None
        # Decode with the preceding tokens: some decoders strip the first space of a text.
        start = tokenizer.decode(before, skip_special=False)
        whole = tokenizer.decode([*before, token], skip_special=False)
        alone = tokenizer.decode([token], skip_special=False)
        return whole.removeprefix(start) if whole.startswith(start) else alone

    return row.model_copy(update={"expected_text": text(row.expected), "got_text": text(row.got)})


def _place(
    row: DivergenceRow,
    question: Question,
    answers: Mapping[str, Any],
    details: Mapping[str, Any],
    tokenizer: TextTokenizer,
    settings: RunSettings,
) -> OutputPosition:
    """Rebuild the prompt from plain decoding's earlier answers, which equal the method's up to here.

    Raises:
        DataError: its length differs from the recorded one.
    """
    conversation = PromptBuilder(tokenizer, settings.prompt_format, system_of(question, settings.system))
    prompt = conversation.ask(question.turns[0])
    for turn in range(row.turn):
        conversation.answer(details["token_ids"][turn], answers["turns"][turn])
        prompt = conversation.ask(question.turns[turn + 1])
    was = details["prompt_tokens"][row.turn]
    if len(prompt) != was:
        raise DataError(
            f"its prompt has {len(prompt)} tokens now and had {was} then",
            expected="the tokenizer and chat template that it was asked with",
        )
    return OutputPosition(tuple(prompt), tuple(details["token_ids"][row.turn][: row.position]))


def _verdict(
    row: DivergenceRow,
    place: OutputPosition,
    stop_ids: Collection[int],
    settings: RunSettings,
    target: Target,
) -> dict[str, Any]:
    """Return judgement, reason and evidence; for an output that ended, use its likeliest stop token."""
    size = target.config.vocab_size
    stops = [token for token in stop_ids if token < size]
    if any(token is not None and not 0 <= token < size for token in (row.expected, row.got)):
        return {"judgement": "fault", "reason": f"the target has {size:,} tokens, and this is none of them"}
    with torch.inference_mode():
        evidence = ask_target(target, place, settings.sampling)
    scores = evidence.scores

    def score(token: int | None) -> float | None:
        if token is None:
            return max((float(scores[stop]) for stop in stops), default=None)
        return float(scores[token])

    found = _weigh(score(row.expected), score(row.got), evidence)
    ended = _ended(row, place, stop_ids, settings.max_new_tokens)
    return found if ended is None else found | {"judgement": "fault", "reason": ended}


def _ended(row: DivergenceRow, place: OutputPosition, stop_ids: Collection[int], limit: int) -> str | None:
    """Return the error if only one output continues; None if both do.

    Two correctly stopped outputs cannot differ like this: the stop token is part of the output, and both have
    the same limit. A full cache is not a divergence.
    """
    if row.expected is not None and row.got is not None:
        return None
    longer, shorter = "this method's output", "plain decoding's output"
    if row.got is None:
        longer, shorter = shorter, longer
    if place.common and place.common[-1] in stop_ids:
        return f"{longer} continues after a stop token"
    if row.position >= limit:
        return f"{longer} continues beyond the limit of {limit:,} tokens"
    return (
        f"{shorter} ends without a stop token, {row.position:,} tokens long and below the limit of {limit:,}"
    )


def _weigh(expected: float | None, got: float | None, evidence: Evidence) -> dict[str, Any]:
    """Return evidence and judgement for the logits of two tokens (None: no token to score)."""
    largest, noise = float(evidence.scores.max()), evidence.noise
    allowed = TOLERANCE * noise
    found: dict[str, Any] = {
        "judgement": "fault",
        "gap": None if expected is None or got is None else _finite(_distance(expected, got)),
        "noise": _finite(noise),
        "expected_logit": _finite(expected),
        "got_logit": _finite(got),
    }
    if not evidence.sound:
        reason = (
            f"the target's own passes over the same tokens differ by {noise:.3g}, more than rounding explains"
        )
        return found | {"reason": reason}
    below = {
        whose: math.inf if logit is None else _distance(largest, logit)
        for whose, logit in (("this method's", got), ("plain decoding's", expected))
    }
    whose = max(below, key=lambda one: below[one])
    if below[whose] <= allowed:
        reason = f"both tokens lie within {allowed:.3g} of the largest logit, {TOLERANCE} times the noise"
        return found | {"judgement": "near-tied", "reason": reason}
    reason = f"{whose} token lies {below[whose]:.3g} below the largest logit; rounding explains {allowed:.3g}"
    return found | {"reason": reason}


def _distance(one: float, other: float) -> float:
    return 0.0 if one == other else abs(one - other)  # handles infinities


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
