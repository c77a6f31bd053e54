"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, text: int = 1) -> list[str]:
    """Lines of a table; a bar in a cell is escaped, the end of a line in it is a space.

    Args:
        columns: headings.
        text: columns from the left that are text; the others are numbers, which stand at the right.
    """
    rule = ["---" if at < text else "---:" for at in range(len(columns))]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in (columns, *rows)]
    return [f"| {' | '.join(line)} |" for line in (cells[0], rule, *cells[1:])]
