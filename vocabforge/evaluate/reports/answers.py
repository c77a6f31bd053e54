"""Show answers of an evaluation token by token: draft step, accepted length, and plain decoding's answer.

Token ids are read from the side files (``details/METHOD.jsonl``) and decoded with the tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from ...core.console import spelled_out
from ...core.journal import read_jsonl_log
from ..identity import first_difference
from ..results.answers import Row
from ..results.schema import Results
from .page import AnswerPair, AnswerToken, Block, Folded, StepLegend

if TYPE_CHECKING:
    from ...corpus.tokenizer.tokenizer import TextTokenizer
    from ..benchmarks import Question

SHOWN = 160  # tokens per answer
_OPEN = 3  # categories that start unfolded
_QUESTION = 240  # characters of the question


def answer_blocks(
    results: Results, folder: Path, tokenizer: TextTokenizer | None, questions: Sequence[Question]
) -> list[Block]:
    """Return the first answer of each category next to plain decoding's: first run, first turn.

    The method with the largest accepted length is shown, because that does not depend on timing noise.

    Args:
        folder: folder of the evaluation.
        tokenizer: None if unknown.
        questions: the questions that were asked.

    Returns:
        Blocks of the page; empty if single cycles are unknown (as with servers) or nothing was compared with
        plain decoding.

    Raises:
        DataError: a side file cannot be read.
    """
    if tokenizer is None or not results.baseline or len(results.methods) < 2:
        return []
    baseline, *others = results.methods
    method = max(others, key=lambda one: one.summary.overall.accepted_length.value or 0.0)
    asked = {question.question_id: question for question in questions}
    plain = {row["question_id"]: row for row in read_jsonl_log(folder / baseline.details[0])}
    first: dict[str, Row] = {}
    for detail in read_jsonl_log(folder / method.details[0]):
        first.setdefault(detail["category"], detail)
    sampled = results.settings.sampling["temperature"] != 0
    pairs: list[Block] = []
    deepest = 0
    for category, row in first.items():
        ids, other = (one["choices"][0]["token_ids"][0] for one in (row, plain[row["question_id"]]))
        lengths = row["choices"][0]["accept_lengths"][0]
        if ids is None or other is None or len(places := draft_steps(lengths)) < len(ids):
            return []
        texts = token_texts(tokenizer, ids[:SHOWN])
        tokens = [
            AnswerToken(spelled_out(text).replace("\n", "↵\n"), *place) for text, place in zip(texts, places)
        ]
        deepest = max([deepest, *(one.step for one in tokens)])
        question = asked[row["question_id"]]
        words = shorten(spelled_out(question.turns[0]), _QUESTION, placeholder=" …")
        pairs.append(
            AnswerPair(
                title=category.replace("_", " "),
                question=f"Question {question.name}: {words}",
                note=f"{_cycles(len(ids), lengths)}; {_same(ids, other, sampled=sampled)}.",
                name=method.name + _cut(len(ids)),
                tokens=tokens,
                other_name=baseline.name + _cut(len(other)),
                other=spelled_out("".join(token_texts(tokenizer, other[:SHOWN]))),
            )
        )
    head: list[Block] = [
        f"The first question of each category, first turn. Shown is {method.name}, which has the largest accepted "
        "length. Hover over a token to see its draft step and the accepted length of its cycle.",
        StepLegend(deepest),
    ]
    more = pairs[_OPEN:]
    folded = f"{len(more)} more categor{'y' if len(more) == 1 else 'ies'}"
    return [*head, *pairs[:_OPEN], *([Folded(folded, more)] if more else [])] if pairs else []


def draft_steps(accept_lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return the draft step and the cycle's accepted length for each token of an answer.

    The first token is from the prompt's pass, (0, 0). A cycle of accepted length n commits the draft tokens
    of steps 1 to n - 1 and then the target's own token, step 0. An answer may end within its last cycle.
    """
    cycles = [[(step, length) for step in (*range(1, length), 0)] for length in accept_lengths]
    return [(0, 0), *(place for cycle in cycles for place in cycle)]


def token_texts(tokenizer: TextTokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text of each token, special tokens by name; a split character belongs to its last token."""
    texts, said = [], ""
    for end in range(1, len(ids) + 1):
        whole = tokenizer.decode(ids[:end], skip_special=False)
        if whole.endswith("\ufffd") and end < len(ids):
            texts.append("")
        else:
            texts.append(whole[len(said) :])
            said = whole
    return texts


def _cut(count: int) -> str:
    return f", first {SHOWN} of {count:,} tokens" if count > SHOWN else ""


def _cycles(count: int, lengths: Sequence[int]) -> str:
    if not lengths:
        return f"{count:,} tokens without a verification"
    return (
        f"{count:,} tokens, {len(lengths):,} verifications, accepted length {sum(lengths) / len(lengths):.2f}"
    )


def _same(ids: Sequence[int], other: Sequence[int], *, sampled: bool) -> str:
    at = first_difference(ids, other)
    if at is None:
        return "the same tokens as plain decoding"
    drawn = " (sampled outputs may differ)" if sampled else ": see Outputs"
    return f"other tokens than plain decoding from token {at + 1:,} on{drawn}"
