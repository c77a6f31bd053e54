"""GSM8K: sums in words, with a worked answer that ends in ``#### result``."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import DataError
from .rows import iter_rows, no_question, text_of
from .types import Question

CATEGORY = "gsm8k"
# Chat models reason without being shown how, but close in many ways; this one is the benchmark's own, which is scored
# exactly.
SYSTEM = (
    "Solve the problem step by step. "
    'Then write "#### " and the result on a line of its own, as a number without units, and nothing after it.'
)


def read_gsm8k(path: Path) -> list[Question]:
    """Read rows of ``{"question", "answer"}``.

    The turn is the question and nothing else, as in Spec-Bench's ``math_reasoning``; the form of the answer is asked
    for in the system message, which only chat formats use. The row's number from 0 is the question id.

    Raises:
        DataError: unreadable file, bad row, an answer without ``#### number`` (with file:line), or no question at all.
    """
    from ..quality.gsm8k import marked_number  # that package imports this one

    questions: list[Question] = []
    for number, (source, row) in enumerate(iter_rows(path)):
        question, answer = text_of(row, "question", source), text_of(row, "answer", source)
        if marked_number(answer) is None:  # the scorer would say so after all questions were asked
            raise DataError(
                "an answer holds no result",
                got=repr(answer[-80:]),
                expected="a line '#### 18'",
                source=source,
            )
        questions.append(
            Question(number, CATEGORY, (question,), (answer,), system=SYSTEM, check={"answer": answer})
        )
    if not questions:
        raise no_question(path)
    return questions
