"""What people see on a terminal: texts of files and models never steer it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # rich is only needed where something is shown
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

# Control characters but tab and newline, the characters that turn the direction of writing, and halves of characters,
# which no output can encode.
_STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def spelled_out(text: str) -> str:
    r"""The text with what a terminal would obey written as ``\x1b``; all languages and emoji stay as they are."""
    return _STEERS.sub(lambda found: repr(found[0])[1:-1], text)


def spelled_in_json(text: str) -> str:
    r"""An equal JSON document: the controls that JSON lets stand (U+007F and above) written as ``\u009b``."""
    return _STEERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def open_console(
    *, stderr: bool = False, highlight: bool = False, markup: bool = False, soft_wrap: bool = False
) -> Console:
    """A console on stdout (or stderr) on which only our own styles are obeyed.

    Args:
        highlight: colour numbers and texts as rich does.
        markup: read rich's ``[bold]``; only for texts in which every quotation is escaped.
        soft_wrap: leave the wrapping of long lines to the terminal.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Harmless(Console):
        """Spells out every text, whatever table or panel it stands in; rich's own controls are no texts."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control or not _STEERS.search(segment.text):
                    yield segment
                else:
                    yield Segment(spelled_out(segment.text), segment.style)

    # emoji=False: rich would print a folder "runs:on:cpu" as another sign.
    return Harmless(stderr=stderr, highlight=highlight, markup=markup, soft_wrap=soft_wrap, emoji=False)
