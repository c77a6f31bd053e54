"""GSM8K: compare the final number of an answer with the reference.

The benchmark's format is a line ``#### 18``. The first such line of an answer counts, because base models
continue with another question. Without such a line the last number counts. Numbers are compared by value:
``$1,234.50``, ``1234.5`` and ``1,234.50.`` are equal, and currency and percent signs are dropped. Numbers in
words are not recognised. Text up to ``</think>`` is not part of the answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from ...core.errors import DataError

# A minus after a letter, digit or bracket is an operator or a dash: "10-3", "5-day".
_NUMBER = (
    r"(?:(?<![\w)\]}%])(?P<sign>[-−])\$?|\$(?P<inner>[-−]))?"
    r"(?P<digits>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
)
_ANY = re.compile(_NUMBER)
# The number must end the line: "#### 1. First step" is a heading.
_MARKED = re.compile(r"(?<!#)####[ \t]*\$?" + _NUMBER + r"[ \t]*[%$]?\.?[ \t]*$", re.MULTILINE)
_THOUGHT_END = "</think>"


@dataclass(frozen=True)
class Score:
    """Score of an answer: the ``number`` judged, and the ``marked`` one in the benchmark's format."""

    marked: Decimal | None
    number: Decimal | None
    passed: bool


def marked_number(text: str) -> Decimal | None:
    """Return the number of the first line ``#### n``."""
    match = _MARKED.search(_final(text))
    return None if match is None else _value(match)


def last_number(text: str) -> Decimal | None:
    """Return the last number in a text."""
    match = None
    for match in _ANY.finditer(_final(text)):  # noqa: B007 (uses the last match)
        pass
    return None if match is None else _value(match)


def reference_number(answer: object, source: str = "GSM8K") -> Decimal:
    """Return the number of a reference answer: a solution ending in ``#### n``, or the number alone.

    Raises:
        DataError: the answer has no number.
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
    """Score one answer."""
    marked = marked_number(text)
    number = last_number(text) if marked is None else marked
    return Score(marked, number, number == reference)


def _final(text: str) -> str:
    return text.replace("\r\n", "\n").rpartition(_THOUGHT_END)[2]


def _value(match: re.Match[str]) -> Decimal:
    number = Decimal(match["digits"].replace(",", ""))
    return number.copy_negate() if match["sign"] or match["inner"] else number  # unary minus would round
