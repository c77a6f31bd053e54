"""The table of targets in the documentation is what the doctor finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.targets_table import replaced, table

DOCUMENT = Path(__file__).parents[2] / "docs" / "guides" / "targets.md"


@pytest.mark.long
def test_the_documents_table_is_what_the_doctor_finds(tmp_path: Path) -> None:
    text = DOCUMENT.read_text("utf-8")
    assert replaced(text, table(tmp_path)) == text, "run make targets"
