"""GSM8K: is the number that an answer ends with the reference's?

The benchmark's own form is a line ``#### 18``; the first such line of an answer counts (base models go on with a
question of their own after it). An answer without one is judged by its last number. Numbers are compared as numbers:
``$1,234.50``, ``1234.5`` and ``1,234.50.`` are the same, signs of currency and percent are dropped. Numbers in words
are none. What a model wrote up to ``</think>`` is not its answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from ...core.errors import DataError

# A minus after a letter, a number or a bracket is an operator or a dash: "10-3", "5-day".
_NUMBER = (
    r"(?:(?<![\w)\]}%])(?P<sign>[-−])\$?|\$(?P<inner>[-−]))?"
    r"(?P<digits>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
)
_ANY = re.compile(_NUMBER)
# The line ends with it: "#### 1. First step" is a heading.
_MARKED = re.compile(r"(?<!#)####[ \t]*\$?" + _NUMBER + r"[ \t]*[%$]?\.?[ \t]*$", re.MULTILINE)
_THOUGHT_END = "</think>"


@dataclass(frozen=True)
class Score:
    """One answer's verdict.

    Attributes:
        marked: the number in the benchmark's own form; None where there is none.
        number: the number judged; None: the answer holds no number.
        passed: it is the reference's. passed_marked: that in the benchmark's own form is.
    """

    marked: Decimal | None
    number: Decimal | None
    passed: bool
    passed_marked: bool


def marked_number(text: str) -> Decimal | None:
    """The number of the first line ``#### n``."""
    match = _MARKED.search(_final(text))
    return None if match is None else _value(match)


def last_number(text: str) -> Decimal | None:
    """The last number in a text."""
    match = None
    for match in _ANY.finditer(_final(text)):  # noqa: B007 (the last one is wanted)
        pass
    return None if match is None else _value(match)


def reference_number(answer: object, source: str = "GSM8K") -> Decimal:
    """The number of a reference answer: a whole solution ending in ``#### n``, or the number alone.

    Raises:
        DataError: there is none.
    """
    text = str(answer)
    number = marked_number(text)
    if number is None and "####" not in text:
        number = last_number(text)
    if number is None:
        raise DataError(
            "a reference answer has no number", got=text[-80:], expected="a line '#### 18'", source=source
        )
    return number


def score(text: str, reference: Decimal) -> Score:
    """Judge one answer."""
    marked = marked_number(text)
    number = last_number(text) if marked is None else marked
    return Score(marked, number, number == reference, marked == reference)


def _final(text: str) -> str:
    return text.replace("\r\n", "\n").rpartition(_THOUGHT_END)[2]


def _value(match: re.Match[str]) -> Decimal:
    number = Decimal(match["digits"].replace(",", ""))
    return number.copy_negate() if match["sign"] or match["inner"] else number  # minus would round
