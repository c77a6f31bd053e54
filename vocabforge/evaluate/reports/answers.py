"""Show answers of an evaluation token by token: draft step and accepted length.

Token ids are read from the side files (``details/METHOD.jsonl``) and decoded with the tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from ...core.console import spelled_out
from ...core.journal import read_jsonl_log
from ..results.answers import Row
from ..results.schema import Results
from .page import AnswerToken, Block, ColouredAnswer, Folded

if TYPE_CHECKING:
    from ...corpus.tokenizer.tokenizer import TextTokenizer
    from ..benchmarks import Question

SHOWN = 160  # tokens per answer
_OPEN = 3  # categories that start unfolded
_QUESTION = 240  # characters of the question


def answer_blocks(
    results: Results, folder: Path, tokenizer: TextTokenizer | None, questions: Sequence[Question]
) -> list[Block]:
    """Return the first answer of each category: first run, first turn.

    The method with the largest accepted length is shown, because that does not depend on timing noise.

    Args:
        folder: folder of the evaluation.

    Returns:
        Blocks of the page; empty if single cycles are unknown (as with servers) or nothing was compared with
        plain decoding.

    Raises:
        DataError: a side file cannot be read.
    """
    if tokenizer is None or not results.baseline or len(results.methods) < 2:
        return []
    method = max(
        results.methods[1:], key=lambda candidate: candidate.summary.overall.accepted_length.value or 0.0
    )
    asked = {question.question_id: question for question in questions}
    first: dict[str, Row] = {}
    for detail in read_jsonl_log(folder / method.details[0]):
        first.setdefault(detail["category"], detail)
    answers: list[Block] = []
    for category, row in first.items():
        choice, question = row["choices"][0], asked[row["question_id"]]
        ids, lengths = choice["token_ids"][0], choice["accept_lengths"][0]
        if ids is None or len(places := draft_steps(lengths)) < len(ids):
            return []
        texts = token_texts(tokenizer, ids[:SHOWN])
        words = shorten(spelled_out(question.turns[0]), _QUESTION, placeholder=" …")
        cut = f", first {SHOWN} shown" if len(ids) > SHOWN else ""
        answers.append(
            ColouredAnswer(
                title=category.replace("_", " "),
                question=f"Question {question.name}: {words}",
                note=f"{len(ids):,} tokens{cut}, {len(lengths):,} verifications"
                + (f", accepted length {sum(lengths) / len(lengths):.2f}." if lengths else "."),
                tokens=[
                    AnswerToken(spelled_out(text).replace("\n", "↵\n"), *place)
                    for text, place in zip(texts, places)
                ],
            )
        )
    if not answers:
        return []
    note = (
        f"The first question of each category, first turn, answered by {method.name}, which has the largest accepted "
        "length. Coloured tokens were drafted: the darker, the later the draft step. The others are the target's own. "
        "Hover over a token to see its draft step and the accepted length of its cycle."
    )
    more = answers[_OPEN:]
    folded = f"{len(more)} more categor{'y' if len(more) == 1 else 'ies'}"
    return [note, *answers[:_OPEN], *([Folded(folded, more)] if more else [])]


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
