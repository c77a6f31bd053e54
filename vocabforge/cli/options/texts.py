"""Options of the commands that read texts and conversations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import typer


class TextUnit(str, Enum):
    """What a document of a text file is."""

    file = "file"
    line = "line"
    paragraph = "paragraph"


MoreInputsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="Further paths of --input.", show_default=False),
]
TextUnitOption = Annotated[TextUnit, typer.Option(help="What one document of a text file is.")]
StrictOption = Annotated[
    bool,
    typer.Option("--strict", help="Fail at the first unreadable line instead of skipping and counting it."),
]


@dataclass(frozen=True, kw_only=True)
class DocumentOptions:
    """What a document is, and where its text stands."""

    text_field: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Field with the text or conversation of a row; by default the usual names."
        ),
    ] = None
    text_unit: TextUnitOption = TextUnit.file
    separator: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Documents of a text file are parted by this literal, such as '<|endoftext|>'.",
        ),
    ] = None

    def check(self) -> None:
        """Raises: UsageError: two ways of parting documents."""
        check_parting(self.separator, self.text_unit.value)


def check_parting(separator: str | None, text_unit: str) -> None:
    """Raises: UsageError: two ways of parting documents."""
    from ...core.errors import UsageError

    if separator is not None and text_unit != "file":
        raise UsageError(
            "--separator and --text-unit exclude each other",
            got=f"--text-unit {text_unit}",
            expected="one of them",
            remedy="leave --text-unit out: the separator parts documents",
        )
