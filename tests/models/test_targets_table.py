"""The table of targets in the documentation is what the doctor finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.architectures import ARCHITECTURES
from tests.models.targets_table import END, START, row
from tests.shares import by_default

DOCUMENT = Path(__file__).parents[2] / "docs" / "guides" / "targets.md"
ROWS = DOCUMENT.read_text("utf-8").partition(START)[2].partition(END)[0].split("\n")[3:-1]


def test_every_architecture_has_a_row() -> None:
    assert [line.split(" | ")[0].removeprefix("| ") for line in ROWS] == list(ARCHITECTURES)


@pytest.mark.long
@pytest.mark.parametrize("name", by_default(ARCHITECTURES, list(ARCHITECTURES)[::4].__contains__))
def test_a_row_of_the_document_is_what_the_doctor_finds(name: str, tmp_path: Path) -> None:
    assert row(name, tmp_path) in ROWS, "run make targets"
