"""What a benchmark prints, as text."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console


def rendered(parts: Iterable[object]) -> str:
    console = Console(width=240, file=io.StringIO())
    for part in parts:
        console.print(part, markup=False)
    return console.file.getvalue()  # type: ignore[attr-defined]
