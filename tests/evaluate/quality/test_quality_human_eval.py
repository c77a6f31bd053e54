"""HumanEval: what of an answer completes the prompt."""

from __future__ import annotations

import ast
import gzip
import json
from typing import Any

import pytest

from tests.worlds import DATA, needs_data
from vocabforge.core.errors import DataError
from vocabforge.evaluate.quality.human_eval import completion_of, program, require_check

CHECK = {
    "prompt": "import math\n\n\ndef helper(x):\n    return x\n\n\n"
    'def area(r):\n    """ Area.\n    >>> area(0)\n    """\n',
    "entry_point": "area",
    "test": "def check(candidate):\n    assert candidate(0) == 0\n    assert candidate(2) == 4\n",
}
BODY = "    if r < 0:\n        return None\n    return helper(r * r)\n"
WHOLE = "def area(r):\n    return r * r\n"
RUBBISH = (
    "\ndef other(x):\n    return",
    "\nclass A:\n  pass",
    "\n# Test\narea(",
    "\nif __name__ == '__main__':\n  area(",
    "\nprint(area(",
    "\n```\nThat is it.",
)


def run(completion: str) -> Any:
    """The checked function as its text makes it, in this process: the texts are this file's own."""
    names: dict[str, Any] = {}
    exec(program(CHECK, completion), names)
    return names["area"]


@pytest.mark.parametrize("rubbish", RUBBISH)
@pytest.mark.parametrize(
    "body", [BODY, BODY.strip(), "\n" + BODY, "return r * r", "# square\n    return r * r"]
)
def test_a_continuation_is_cut_at_every_stop_word(body: str, rubbish: str) -> None:
    completion = completion_of(body + rubbish, CHECK, "raw")
    assert run(completion)(3) == 9
    assert rubbish.strip() not in completion


def test_indented_stop_words_stay() -> None:
    body = "    # half\n    def twice(x):\n        return 2 * x\n    if r:\n        print(r)\n    return twice(r)\n"
    assert completion_of(body, CHECK, "raw") == body
    assert completion_of(body.strip(), CHECK, "raw") == body.rstrip()


def test_the_answers_first_line_gets_the_prompts_indentation_back() -> None:
    tabs = {**CHECK, "prompt": "def area(r):\n\t''' Area. '''\n"}
    assert completion_of("x = r\n\treturn x", tabs, "raw") == "\tx = r\n\treturn x"
    assert completion_of("", CHECK, "raw") == ""


@pytest.mark.parametrize("form", ["raw", "chat"])
@pytest.mark.parametrize("before", ["", "import cmath\n\n\n", "def square(x):\n    return x * x\n\n\n"])
def test_an_answer_may_begin_again(form: Any, before: str) -> None:
    completion = completion_of(f"{before}{WHOLE}\nprint(area(", CHECK, form)
    assert run(completion)(3) == 9
    assert before.strip() in completion
    assert "print" not in completion


CHAT = {
    "plain fence": f"```\n{WHOLE}```",
    "language": f"Sure!\n\n```python\n{WHOLE}```\nIt squares.",
    "never closed": f"Sure!\n```py\n{WHOLE}",
    "tildes": f"~~~python\n{WHOLE}~~~\n",
    "in a list": "1. So:\n   ```python\n   def area(r):\n       return r * r\n   ```\n",
    "example first": f"```\narea(2) -> 4\n```\nThe code:\n```python\n{WHOLE}```",
    "example last": f"```python\n{WHOLE}```\nUse it:\n```python\nassert area(2) == 5\n```",
    "helper and import": f"```python\nimport math\n\n\ndef sq(x):\n    return x\n\n\n{WHOLE}\nprint(area(1))\n```",
    "indented in its fence": "```python\n    def area(r):\n        return r * r\n```",
    "body only": f"```python\n{BODY}```",
    "body without indentation": "```python\nif r < 0:\n    return None\nreturn helper(r * r)\n```",
    "no fence": f"Here you are:\n{WHOLE}\n# Example:\narea(",
    "fence that the prompt opened": f"{WHOLE}```\nThat is it.",
    "body without fence": "return r * r",
    "thought": f"<think>\n```python\ndef area(r):\n    return 0\n```\n</think>\n```python\n{WHOLE}```",
    "windows": f"```python\n{WHOLE}```\nDone.".replace("\n", "\r\n"),
    "prompt again": f"```python\n{CHECK['prompt']}{BODY}```",
}


@pytest.mark.parametrize("case", CHAT)
def test_chat_answers(case: str) -> None:
    assert run(completion_of(CHAT[case], CHECK, "chat"))(3) == 9


@pytest.mark.parametrize("check", [None, {}, {**CHECK, "test": None}, {"prompt": "x", "entry_point": "y"}])
def test_a_question_without_tests_is_refused(check: Any) -> None:
    with pytest.raises(DataError, match="no tests"):
        require_check(check, "HumanEval/0")


@needs_data
@pytest.mark.shared
def test_real_solutions_come_through_every_form_unchanged() -> None:
    file = DATA / "human_eval/HumanEval.jsonl.gz"
    with gzip.open(file, "rt", encoding="utf-8") as handle:
        rows = [json.loads(line) for line in handle]
    assert len(rows) == 164
    for number, row in enumerate(rows):
        solution, rubbish = row["canonical_solution"], RUBBISH[number % len(RUBBISH)]
        wanted = ast.dump(ast.parse(row["prompt"] + solution))
        raw = (solution, solution.strip(), solution + rubbish, solution.strip() + "\n" + rubbish)[number % 4]
        assert ast.dump(ast.parse(row["prompt"] + completion_of(raw, row, "raw"))) == wanted, row["task_id"]
        again = row["prompt"] + solution
        chat = (f"Here:\n```python\n{again}```\n{rubbish}", f"{again}{rubbish}")[number // 4 % 2]
        made = ast.parse(row["prompt"] + completion_of(chat, row, "chat"))
        assert ast.dump(made.body[-1]) == ast.dump(ast.parse(again).body[-1]), row["task_id"]
