"""Compare outputs with plain decoding's, and judge whether the target's rounding explains a difference.

Passes of different sizes add numbers in another order, so greedy decoding may choose another token where two
logits nearly tie. The target is asked once, at the position where two outputs diverge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..core.errors import DataError, VocabForgeError
from ..core.progress import ProgressBar
from ..decode.sampling import TokenHistory
from ..decode.target_side import TargetSide
from .results.schema import DivergenceRow, Outputs
from .run.prompts import PromptBuilder, system_of

if TYPE_CHECKING:
    from ..models.target.interface import Target
    from .evaluation import Evaluation
    from .results.answers import MethodRows

MOST_JUDGED = 50  # per method; judging costs one pass over the prompt and the output up to the divergence

Choice = Mapping[str, Any]


def first_difference(left: Sequence[int] | str, right: Sequence[int] | str) -> int | None:
    """Return the first position where two outputs differ (the length of a prefix); None if they are equal."""
    shared = min(len(left), len(right))
    place = next((at for at in range(shared) if left[at] != right[at]), shared)
    return None if place == len(left) == len(right) else place


def compare_outputs(
    evaluation: Evaluation, baseline: Sequence[MethodRows], rows: Sequence[MethodRows]
) -> Outputs:
    """Compare a method's outputs in each run with plain decoding's, and judge the first difference of each.

    Token ids are compared, or texts if a server does not return them. Outputs of servers are not judged.
    """
    target = getattr(evaluation.methods[0].generator, "target", None)
    divergences: list[tuple[DivergenceRow, Choice]] = []
    compared = cut = 0
    for run, plain, method in zip(evaluation.settings.runs, baseline, rows, strict=True):
        expected = _by_question(plain)
        for number, own in sorted(_by_question(method).items()):
            divergence, was_cut = _first_divergence(expected[number], own)
            compared, cut = compared + 1, cut + was_cut
            if divergence is not None:
                row = DivergenceRow(run=run.number, question_id=number, **divergence)
                divergences.append((row, expected[number]))
    known: dict[tuple[object, ...], dict[str, Any]] = {}  # repeated greedy runs diverge at the same positions
    judged = []
    with ProgressBar("Judging differing outputs", len(divergences), "divergences") as bar:
        for row, answer in divergences:
            key = (row.question_id, row.turn, row.position, row.expected, row.got)
            if target is not None and key not in known and len(known) < MOST_JUDGED:
                known[key] = judge(evaluation, target, row, answer)
            limit = {"reason": f"only {MOST_JUDGED} divergences of a method are judged"} if target else {}
            judged.append(row.model_copy(update=known.get(key, limit)))
            bar.update(1)
    counts = Counter(row.judgement for row in judged)
    return Outputs(
        compared=compared,
        identical=compared - len(judged),
        cut=cut,
        near_tied=counts["near-tied"],
        faults=counts["fault"],
        not_judged=counts["not judged"],
        divergences=judged,
    )


def _by_question(rows: MethodRows) -> dict[int, Choice]:
    texts = {row["question_id"]: row["choices"][0]["turns"] for row in rows.answers}
    return {
        row["question_id"]: {**row["choices"][0], "turns": texts[row["question_id"]]} for row in rows.details
    }


def _first_divergence(plain: Choice, own: Choice) -> tuple[dict[str, Any] | None, bool]:
    """Return the fields of the first divergence, and whether a full cache ended the comparison."""
    for turn, (want, have) in enumerate(zip(plain["token_ids"], own["token_ids"], strict=True)):
        if want is None or have is None:
            place = first_difference(plain["turns"][turn], own["turns"][turn])
            divergence = {"turn": turn, "position": place, "expected": None, "got": None, "unit": "character"}
        else:
            place = first_difference(want, have)
            shorter = plain if len(want) < len(have) else own
            if place == min(len(want), len(have)) and shorter["finish"][turn] == "cache":
                return None, True  # the continuation is unknown, and so are the prompts of later turns
            expected, got = (None if place is None else next(iter(ids[place:]), None) for ids in (want, have))
            divergence = {"turn": turn, "position": place, "expected": expected, "got": got}
        if place is not None:
            return divergence, False
    return None, False


def judge(evaluation: Evaluation, target: Target, row: DivergenceRow, plain: Choice) -> dict[str, Any]:
    """Return a divergence's judgement, reason, texts and logits, see :class:`~.schema.DivergenceRow`.

    Args:
        target: the target with the weights, dtype and device it decoded with.
        plain: plain decoding's output, with the texts of its ``turns``.
    """
    tokenizer, texts = evaluation.tokenizer, {}
    for name, token in (("expected_text", row.expected), ("got_text", row.got)):
        if token is not None and tokenizer is not None:
            texts[name] = tokenizer.decode([token], skip_special=False)
    if row.expected is None or row.got is None:
        # The stop token is part of an output and all have one limit, so correct outputs never end like this.
        reason = f"one output ends after {row.position:,} tokens, where the other continues"
        return texts | {"judgement": "fault", "reason": reason}
    if not 0 <= row.got < target.config.vocab_size:
        return texts | {"judgement": "fault", "reason": f"the target has no token {row.got}"}
    try:
        scores = _scores(evaluation, target, row, plain)
    except (VocabForgeError, RuntimeError) as error:  # such as out of memory
        first, *_ = (str(error) or type(error).__name__).splitlines()
        return texts | {"reason": f"the target could not be asked: {first}"}
    largest, expected, got = (float(value) for value in (scores.max(), scores[row.expected], scores[row.got]))
    allowed = rounding(target.dtype) * float(np.abs(scores[np.isfinite(scores)]).max(initial=0.0))
    below, whose = max((largest - got, "this method's"), (largest - expected, "plain decoding's"))
    if below <= allowed:
        verdict, reason = "near-tied", f"both tokens are within {allowed:.3g} of the largest logit"
    else:
        verdict = "fault"
        reason = f"{whose} token is {below:.3g} below the largest logit; rounding explains {allowed:.3g}"
    figures = {"gap": abs(expected - got), "tolerance": allowed, "expected_logit": expected, "got_logit": got}
    finite = {name: value for name, value in figures.items() if np.isfinite(value)}
    return texts | finite | {"judgement": verdict, "reason": reason}


def rounding(dtype: torch.dtype) -> float:
    """Return how far rounding can part two logits, relative to the largest one.

    Sums are accumulated in fp32 or wider, so a narrow dtype only rounds stored values: a few units in the last
    place. The units of a wide dtype add up over layers, and are far smaller.
    """
    eps = torch.finfo(dtype).eps
    return eps * (512 if eps < 1e-6 else 4)


def _scores(
    evaluation: Evaluation, target: Target, row: DivergenceRow, plain: Choice
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the target's (V,) logits at the divergence, after penalties if any.

    The prompt is built again from plain decoding's earlier answers, which equal the method's up to here.
    """
    settings, tokenizer = evaluation.settings, evaluation.tokenizer
    assert tokenizer is not None
    (question,) = (asked for asked in evaluation.benchmark.questions if asked.question_id == row.question_id)
    conversation = PromptBuilder(tokenizer, settings.prompt_format, system_of(question, settings.system))
    prompt = conversation.ask(question.turns[0])
    for turn in range(row.turn):
        conversation.answer(plain["token_ids"][turn], plain["turns"][turn])
        prompt = conversation.ask(question.turns[turn + 1])
    if len(prompt) != (was := plain["prompt_tokens"][row.turn]):
        raise DataError(f"its prompt has {len(prompt)} tokens now and had {was} then")
    common = plain["token_ids"][row.turn][: row.position]
    side = TargetSide(target, (), 1)
    side.allocate(len(prompt) + len(common), 0)
    with torch.inference_mode():
        logits, _ = side.prefill(0, torch.tensor([*prompt, *common], device=target.device), "none")
    scores: np.ndarray[Any, np.dtype[np.float32]] = logits.float().cpu().numpy()
    history = TokenHistory(prompt, target.config.vocab_size)
    history.add(common)
    return history.penalise(scores, settings.sampling, ()) if settings.sampling.penalised else scores
