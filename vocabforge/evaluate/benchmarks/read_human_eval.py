"""HumanEval: Python functions to complete."""

from __future__ import annotations

import re
from pathlib import Path

from ...core.errors import DataError
from .rows import Seen, iter_rows, no_question, text_of
from .types import Question

CATEGORY = "human-eval"
# FR-Spec's words, so that its figures and ours are of the same prompts.
SYSTEM = (
    "Please complete the following Python code "
    "without providing any additional tasks such as testing or explanations."
)
_TASK_ID = re.compile(r"[^/]+/(\d{1,9})")


def read_human_eval(path: Path) -> list[Question]:
    """Read rows of ``{"task_id", "prompt", "entry_point", "test"[, "canonical_solution"]}``.

    The turn is the code to complete and nothing else, so that a base model continues it; what to do with it stands
    in the system message, which only chat formats use. The number behind the task id's slash is the question id.

    Raises:
        DataError: unreadable file, bad row, a number that stands twice (with file:line), or no question at all.
    """
    questions: list[Question] = []
    seen = Seen()
    for source, row in iter_rows(path):
        task_id, prompt = text_of(row, "task_id", source), text_of(row, "prompt", source)
        found = _TASK_ID.fullmatch(task_id)
        if found is None:
            raise DataError(
                "the task_id holds no number", got=task_id, expected="a name like HumanEval/0", source=source
            )
        seen.add(int(found[1]), source)
        entry_point = text_of(row, "entry_point", source)
        if not entry_point.isidentifier():
            raise DataError(
                "the entry_point is no name of a function",
                got=entry_point[:80],
                expected="the name of the function under test",
                source=source,
            )
        solution = row.get("canonical_solution")
        questions.append(
            Question(
                int(found[1]),
                CATEGORY,
                (prompt,),
                (solution,) if isinstance(solution, str) else None,
                task_id,
                SYSTEM,
                {
                    "prompt": prompt,
                    "entry_point": entry_point,
                    "test": text_of(row, "test", source),
                },
            )
        )
    if not questions:
        raise no_question(path)
    return questions
