"""Looking rows of the study's table up, for claims: by family, size, shape and speed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .joined import CHAIN, EVERYTHING, GREEDY, ROOFLINE, SHAPE, Row
from .results import RARE


class Looked(NamedTuple):
    """A figure and its words; without a figure, what is missing.

    ``told``: the seeds tell the two rows of a comparison apart (a paired difference of two standard errors).
    """

    value: float | None
    words: str
    told: bool = True


_COLUMN_WORDS = {SHAPE: "8B shape", ROOFLINE: "byte roofline of the 8B shape"}
_NUMBER = re.compile(r"\d[\d,]*")


@dataclass(frozen=True)
class Table:
    """Rows of one shape, temperature and group.

    Attributes:
        rows: those.
        everything: all rows, of which others can be taken.
        shape, temperature, rare: see :meth:`of`.
        column: whose speeds are compared: the measured larger shape, else its roofline.
    """

    rows: tuple[Row, ...]
    everything: tuple[Row, ...]
    shape: str
    temperature: str
    rare: str
    column: str

    @classmethod
    def of(
        cls,
        rows: Sequence[Row],
        *,
        shape: str | None = None,
        temperature: str = GREEDY,
        group: str = EVERYTHING,
        rare: str = RARE,
    ) -> Table:
        """Rows of a group.

        Args:
            shape: None: the largest tree, else the chain.
            rare: name of the group of questions with rare tokens.
        """
        shape = shape or largest(row.shape for row in rows)
        kept = tuple(
            row for row in rows if (row.shape, row.temperature, row.group) == (shape, temperature, group)
        )
        measured = any(SHAPE in row.predicted for row in kept)
        return cls(kept, tuple(rows), shape, temperature, rare, SHAPE if measured else ROOFLINE)

    def on_rare(self) -> Table:
        """The same on the questions with rare tokens."""
        return Table.of(
            self.everything, shape=self.shape, temperature=self.temperature, group=self.rare, rare=self.rare
        )

    @property
    def column_words(self) -> str:
        return _COLUMN_WORDS[self.column]

    @staticmethod
    def tokens(row: Row) -> float | None:
        """Most tokens that get an exact logit in a row; None where nothing was counted."""
        return max((size for size in row.scored if size == size), default=None)

    def of_family(self, family: str) -> list[Row]:
        return [row for row in self.rows if row.family == family]

    def dynamic(self) -> list[Row]:
        return [row for row in self.rows if row.dynamic]

    def first(self, family: str) -> Row | None:
        """The row of a family that has one."""
        return next(iter(self.of_family(family)), None)

    def find(self, family: str, size: int, name: str | None = None) -> Row | None:
        """The row of that size; ``name`` where a family has several."""
        return next(
            (
                row
                for row in self.of_family(family)
                if self.size_of(row) == size and (name is None or row.name == name)
            ),
            None,
        )

    def size_of(self, row: Row) -> int:
        """The first number of its setting; 0 without one."""
        found = _NUMBER.search(row.setting)
        return int(found[0].replace(",", "")) if found else 0

    def length(self, family: str) -> str:
        row = self.first(family)
        return "accepted length" if row is None else f"{row.accepted:.2f} tokens a cycle"

    def speed(self, row: Row) -> float | None:
        """Predicted tokens a second."""
        return row.tokens_per_s(self.column)

    def speedup(self, row: Row) -> float | None:
        """Over plain decoding."""
        found = row.predicted.get(self.column)
        return None if found is None else found.speedup

    def head_us(self, row: Row) -> float | None:
        """Microseconds that its head takes a cycle."""
        found = row.predicted.get(self.column)
        return None if found is None else found.head_s * 1e6

    def fastest(self, rows: Iterable[Row]) -> Row | None:
        known = [row for row in rows if self.speed(row) is not None]
        return max(known, key=lambda row: self.speed(row) or 0.0, default=None)

    def speeds(self, one: Row | None, other: Row | None) -> Looked:
        """Predicted tokens a second of one row over another's."""
        return ratio(one, other, self.speed, f"tokens/s, {self.column_words}")


def largest(shapes: Iterable[str]) -> str:
    """The tree of most nodes, else the chain."""
    found = {int(number[0]): shape for shape in shapes if (number := _NUMBER.search(shape))}
    return found[max(found)] if found else CHAIN


def ratio(
    one: Row | None,
    other: Row | None,
    of: Callable[[Row], float | None],
    what: str,
    *,
    percent: bool = False,
    lengths: bool = False,
) -> Looked:
    """A figure of one row over another's, in words with both.

    Args:
        lengths: it is their accepted length, or its share: whether seeds tell the two apart is said.
    """
    if one is None or other is None:
        return Looked(None, "a row of the comparison is missing")
    above, below = of(one), of(other)
    if above is None or not below:
        return Looked(None, "a row of the comparison has no such figure")
    form = (lambda value: f"{value:.1%}") if percent else (lambda value: f"{value:.4g}")
    words = f"{above / below:.3f}: {one.label} {form(above)}, {other.label} {form(below)} {what}"
    told, apart = _apart(one, other) if lengths else (True, "")
    return Looked(above / below, words + apart, told)


def _apart(one: Row, other: Row) -> tuple[bool, str]:
    """Whether two accepted lengths differ by more than two standard errors of their difference over seeds, paired."""
    pairs = [(a, b) for a, b in zip(one.by_seed, other.by_seed) if a is not None and b is not None]
    if len(pairs) < 2:
        return False, "; one seed tells no difference"
    apart = np.array([a - b for a, b in pairs])
    error = float(apart.std(ddof=1)) / len(pairs) ** 0.5
    told = abs(float(apart.mean())) > 2 * error
    return told, f"; {apart.mean():+.4f} ± {error:.4f} over seeds" + ("" if told else ": no difference told")
