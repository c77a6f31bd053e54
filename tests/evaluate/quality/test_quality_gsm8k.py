"""GSM8K: the number of an answer, its traps, and the real reference answers."""

from __future__ import annotations

import json
import math
import re
import statistics
from decimal import Decimal

import pytest

from tests.worlds import DATA, needs_data
from vocabforge.evaluate.benchmarks.gsm8k import (
    last_number,
    marked_number,
    reference_number,
    score,
)
from vocabforge.evaluate.quality.scoring import rate, wilson

LAST = {
    "so she pays 1,234.50": "1234.50",
    "It costs $5": "5",
    "It costs $5.": "5",
    "that is 50%": "50",
    "That makes 5.": "5",
    "the balance is -3": "-3",
    "the balance is −3 degrees": "-3",
    "the balance is -$3.25": "-3.25",
    "the balance is $-3": "-3",
    "10-3": "3",
    "(5)-2": "2",
    "10-3=7": "7",
    "5 - 3": "3",
    "a 5-day trip": "5",
    "- 12 eggs": "12",
    "one of 1,2,3": "3",
    "12,34": "34",
    "1,234,567 people": "1234567",
    "0.50": "0.5",
    "a half is .5": "0.5",
    "\\boxed{18}": "18",
    "**42**": "42",
    "first 7, then 8, at last 9 apples!": "9",
    "<think>4 or 5? 99</think>It is 7": "7",
}


@pytest.mark.parametrize(("text", "number"), LAST.items())
def test_the_last_number(text: str, number: str) -> None:
    assert last_number(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "eighteen", "no idea - none", "$", "the answer is -", "5</think>five"])
def test_a_text_without_a_number_is_wrong(text: str) -> None:
    assert last_number(text) is None
    judged = score(text, Decimal(18))
    assert (judged.passed, judged.marked, judged.number) == (False, None, None)


MARKED = {
    "x\n#### 18": "18",
    "x\n#### 18\n": "18",
    "so 18 #### 18": "18",
    "#### $1,234.50": "1234.50",
    "#### -10.": "-10",
    "####70000": "70000",
    "#### 50%": "50",
    # A base model goes on with the next question: the first mark is the answer.
    "#### 5\n\nQuestion: Tom has 3 ...\n#### 8\n#### 9": "5",
    "#### 1. First step\n2 + 2\n#### 2. Second\n#### 4": "4",
    "#### 5\r\n": "5",
}


@pytest.mark.parametrize(("text", "number"), MARKED.items())
def test_the_marked_number(text: str, number: str) -> None:
    assert marked_number(text) == Decimal(number)


@pytest.mark.parametrize(
    "text", ["18", "#### eighteen", "### 18", "##### 18", "#### 1. Step", "#### 18 dollars"]
)
def test_no_marked_number(text: str) -> None:
    assert marked_number(text) is None


@pytest.mark.parametrize(("answer", "number"), [("x\n#### 1,080", 1080), ("18", 18), (18, 18), ("-10", -10)])
def test_references(answer: object, number: int) -> None:
    assert reference_number(answer) == number


@needs_data
@pytest.mark.shared
def test_real_rows_score_themselves_and_not_each_other() -> None:
    file = DATA / "gsm8k/test.jsonl"
    answers = [json.loads(line)["answer"] for line in file.read_text("utf-8").splitlines()]
    references = [reference_number(answer) for answer in answers]
    assert len(references) == 1319
    for answer, reference in zip(answers, references, strict=True):
        assert score(answer, reference).marked == reference
        # The number in prose, as a chat model says it.
        said = re.sub(r"\n#### (.*)$", r"\nThe answer is **$\1**.", answer)
        judged = score(said, reference)
        assert judged.passed
        assert judged.marked is None
        assert not score(answer, reference + 1).passed


def test_wilsons_interval() -> None:
    # Brown, Cai, DasGupta (Statistical Science 16, 2001): 5 of 10.
    assert wilson(0.5, 10) == pytest.approx((0.236593, 0.763407), abs=1e-6)
    for share, count in ((0.0, 164), (1.0, 164), (0.25, 4), (0.9, 1000)):
        low, high = wilson(share, count)
        assert 0 <= low <= share <= high <= 1
        for bound in {low, high} - {0.0, 1.0}:  # the bounds solve |share - p| = z sqrt(p (1 - p) / n)
            assert abs(share - bound) == pytest.approx(
                1.959964 * math.sqrt(bound * (1 - bound) / count), rel=1e-5
            )


def test_a_rate_over_runs() -> None:
    runs = [[True, False, True, False], [True, True, True, False], [True, False, False, False]]
    figure = rate(runs)
    assert figure.value == pytest.approx(0.5)
    assert figure.sd == pytest.approx(statistics.stdev([0.5, 0.75, 0.25]))
    assert (figure.low, figure.high) == wilson(0.5, 4)
    one = rate([[True, False]])
    assert (one.value, one.sd) == (0.5, None)
    assert one.low is not None
    assert rate([[True]]).low is None
    assert rate([]).value is None
