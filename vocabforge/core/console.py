"""Terminal output: tables and text from which control characters are escaped."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .distributed import rank

if TYPE_CHECKING:  # rich is imported only when something is shown
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.table import Table

# Control characters except tab and newline, bidirectional controls, and lone surrogates (not encodable).
_STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_NAME = 22  # row names up to this length are not folded
_TONES = {"good": "green", "bad": "red", "mild": "dim", "": ""}


def spelled_out(text: str) -> str:
    r"""Escape the characters that a terminal would interpret (``\x1b``); other Unicode text is unchanged."""
    return _STEERS.sub(lambda match: repr(match[0])[1:-1], text)


def spelled_in_json(text: str) -> str:
    r"""Escape the control characters that JSON allows unescaped (U+007F and above) as ``\u009b``."""
    return _STEERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def open_console(*, stderr: bool = False, highlight: bool = False, soft_wrap: bool = False) -> Console:
    """Open a console on stdout (or stderr) that escapes control characters in all text.

    Args:
        highlight: enable rich's highlighting of numbers and strings.
        soft_wrap: let the terminal wrap long lines.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Harmless(Console):
        """Console that escapes text inside any renderable; rich's own control segments are kept."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control or not _STEERS.search(segment.text):
                    yield segment
                else:
                    yield Segment(spelled_out(segment.text), segment.style)

    # emoji=False: rich would replace ":on:" in a folder name such as "runs:on:cpu".
    return Harmless(stderr=stderr, highlight=highlight, markup=False, soft_wrap=soft_wrap, emoji=False)


def console() -> Console:
    """Return the console for user messages (stderr)."""
    return open_console(stderr=True, soft_wrap=True)


def say(message: str) -> None:
    """Print one line to stderr, on rank 0 only."""
    if rank() == 0:
        print(spelled_out(message), file=sys.stderr, flush=True)  # noqa: T201


# Tables


@dataclass(frozen=True)
class DataCell:
    """Table cell with formatting.

    Attributes:
        under: second, smaller line, such as an interval.
        tone: ``good``, ``bad``, ``mild`` or empty.
        look: index of a method's colour and marker; used only on HTML pages.
    """

    text: str
    under: str = ""
    tone: str = ""
    look: int | None = None


@dataclass(frozen=True)
class DataTable:
    """Table that can be shown in a terminal (rich), on an HTML page (``page.html.j2``) or as Markdown.

    On a narrow terminal the columns are split over several tables, each starting with the first column.

    Attributes:
        columns: headings. A trailing ``<`` marks a text column (left-aligned, folded if needed); other
            columns are numeric.
        rows: cells: text, a :class:`DataCell`, a number, or None (shown as a dash).
        strong: index of the row to emphasise.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""
    strong: int | None = None

    @property
    def headings(self) -> list[tuple[str, bool]]:
        """Heading of each column, and whether it is text."""
        return [(name.removesuffix("<"), name.endswith("<")) for name in self.columns]

    @property
    def cells(self) -> list[list[DataCell]]:
        """All rows, every cell as a :class:`DataCell`."""
        return [
            [
                cell if isinstance(cell, DataCell) else DataCell("–" if cell is None else value_text(cell))
                for cell in row
            ]
            for row in self.rows
        ]

    def without_empty_columns(self) -> DataTable:
        """Return a copy without the columns that have a dash in every row."""
        kept = [
            place for place, column in enumerate(zip(*self.cells)) if {cell.text for cell in column} != {"–"}
        ]
        columns = [self.columns[place] for place in kept]
        return replace(self, columns=columns, rows=[[row[place] for place in kept] for row in self.rows])

    def markdown(self) -> list[str]:
        """Return the lines of a Markdown table; the text columns must come first."""
        rows = ([" ".join(filter(None, (cell.text, cell.under))) for cell in row] for row in self.cells)
        return markdown_table(
            [name for name, _ in self.headings], rows, text=sum(t for _, t in self.headings)
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.text import Text

        cells, needs = self.cells, []
        for place, (name, text) in enumerate(self.headings):
            lines = [line for row in cells for line in (row[place].text, row[place].under)]
            words = [*lines, *textwrap.wrap(name, 9)]
            if text and place == 0:  # names up to _NAME characters are not folded
                words = [line[:_NAME] for line in (name, *lines)]
            elif text:
                words = [word[:20] for line in (name, *lines) for word in line.split()]
            needs.append(max(map(len, words), default=0) + 2)
        rest, title = list(range(1, len(needs))), self.title
        while True:
            shown, left = [0], options.max_width - needs[0]
            while rest and (len(shown) == 1 or left >= needs[rest[0]]):
                left -= needs[rest[0]]
                shown.append(rest.pop(0))
            yield self._part(title, shown, cells, needs)
            if not rest:
                break
            title = "(continued)"
        if self.caption:
            yield Text(self.caption, style="dim italic")

    def _part(
        self, title: str, shown: Sequence[int], cells: list[list[DataCell]], needs: Sequence[int]
    ) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=Text(title) if title else None,  # Text: no markup interpretation
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            collapse_padding=True,
            pad_edge=False,
        )
        for place in shown:
            name, text = self.headings[place]
            lines = [
                line for part in name.split("\n") for line in textwrap.wrap(part, max(9, needs[place] - 2))
            ]
            table.add_column(
                Text(name if text else "\n".join(lines)),
                justify="left" if text else "right",
                overflow="fold",
                # rich shrinks wrappable columns in turn; keep short row names out of that
                no_wrap=not text or (place == 0 and needs[0] < _NAME + 2),
            )
        for number, row in enumerate(cells):
            entries: list[RenderableType] = []
            for place in shown:
                cell = row[place]
                entry = Text(cell.text, style=_TONES[cell.tone])
                entries.append(entry.append(f"\n{cell.under}", style="dim") if cell.under else entry)
            table.add_row(*entries, style="bold" if number == self.strong else None)
        return table


@dataclass(frozen=True)
class FactList:
    """Names and values, one per line."""

    facts: Mapping[str, Any]
    title: str = ""

    @property
    def items(self) -> list[tuple[str, str]]:
        """Names and values as text."""
        return [(name, value_text(value)) for name, value in self.facts.items()]

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=Text(self.title) if self.title else None,
            title_justify="left",
            box=None,
            show_header=False,
            padding=(0, 2, 0, 0),
        )
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in self.items:
            table.add_row(Text(name), Text(value))
        return table


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, text: int = 1) -> list[str]:
    """Return the lines of a Markdown table; bars in cells are escaped, newlines become spaces.

    Args:
        text: number of leading text columns; the others are right-aligned.
    """
    rule = ["---" if at < text else "---:" for at in range(len(columns))]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in (columns, *rows)]
    return [f"| {' | '.join(line)} |" for line in (cells[0], rule, *cells[1:])]


def value_text(value: Any) -> str:
    """Format a value on one line for display."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {value_text(item)}" for name, item in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        few = ", ".join(str(item) for item in value[:8])
        return (few + (f", … ({len(value):,} in all)" if len(value) > 8 else "")) or "none"
    return str(value)


def percent(share: float | None, digits: int = 2) -> str:
    """Format a fraction as a percentage; None becomes a dash."""
    return "–" if share is None else f"{share:.{digits}%}"
