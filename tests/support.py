"""What several tests share: the development data's place and tiny models."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("VOCABFORGE_DATA", ROOT.parent / "shared" / "data"))

needs_data = pytest.mark.skipif(
    not (DATA / "SOURCES.md").is_file(),
    reason=f"development data not found at {DATA} (set VOCABFORGE_DATA)",
)
