"""Tables that fit a terminal's width: names break between their parts, columns go to a second table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .report_text import interval, number
from .results import Figure

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

# A part ends behind one of these; `before:eagle3+r16384` has three.
_PARTS = re.compile(r"[^\s+:/_-]*[\s+:/_-]+|[^\s+:/_-]+")
# Blanks on both sides of a column.
_PADDING = 2


def simple_table(title: str) -> Table:
    """An empty table in the look of all tables of an evaluation."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    return Table(
        title=Text(title),  # the names in it are no markup
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )


def figure_cell(figure: Figure, digits: int = 2) -> Text:
    """The value, and under it the interval."""
    from rich.text import Text

    text, between = Text(number(figure.value, digits)), interval(figure, digits)
    return text.append(f"\n{between}", style="dim") if between else text


def broken(name: str, width: int) -> list[str]:
    """The name in lines of at most ``width`` characters, broken behind ``+ : - / _`` where that is possible."""
    lines = [""]
    for part in _PARTS.findall(name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return [line.rstrip() for line in lines]


def widest_part(name: str) -> int:
    """Characters of the longest part of a name that is not broken."""
    return max((len(part.rstrip()) for part in _PARTS.findall(name)), default=0)


@dataclass(frozen=True)
class Name:
    """A method's name in a cell; what the name holds is no markup."""

    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        lines = broken(self.text, max(1, options.max_width))
        longest = max(map(len, lines))
        return Measurement(min(widest_part(self.text), longest), longest)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        for line in broken(self.text, max(1, options.max_width)):
            yield Text(line, justify=options.justify)


@dataclass(frozen=True)
class TaskTable:
    """A table with a column a method, cut into several where the terminal is too narrow for all of them.

    Attributes:
        rows: task and number of questions.
        columns: method and its cells, one a row.
    """

    title: str
    rows: Sequence[tuple[str, str]]
    columns: Sequence[tuple[str, Sequence[str]]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        rest = list(self.columns)
        while rest or not self.columns:
            count = self._fitting(rest, options.max_width)
            yield self._table(rest[:count], first=len(rest) == len(self.columns))
            rest = rest[count:]
            if not rest:
                return

    def _fitting(self, columns: Sequence[tuple[str, Sequence[str]]], width: int) -> int:
        """How many of the next columns one table can hold; one at least."""
        heads = (max((len(row[0]) for row in self.rows), default=4), len("questions"))
        left = width - 2 - sum(head + _PADDING for head in heads)
        for count, (name, cells) in enumerate(columns):
            left -= max(widest_part(name), *(len(cell) for cell in cells), 1) + _PADDING
            if left < 0:
                return max(1, count)
        return len(columns)

    def _table(self, columns: Sequence[tuple[str, Sequence[str]]], *, first: bool) -> Table:
        from rich.text import Text

        table = simple_table(self.title if first else "the same, continued")
        table.add_column("task", no_wrap=True)
        table.add_column("questions", justify="right", no_wrap=True)
        for name, _ in columns:
            table.add_column(Name(name), justify="right")
        for place, (task, questions) in enumerate(self.rows):
            table.add_row(Text(task), questions, *(Text(cells[place]) for _, cells in columns))
        return table
