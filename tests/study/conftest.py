"""What several tests of the study share, made once."""

from __future__ import annotations

import pytest

from tests.study.drafted_support import make_drafted
from vocabforge.study.config import StudyLayout


@pytest.fixture(scope="session")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> StudyLayout:
    """A study up to its replay; tests that change it work on a copy."""
    return make_drafted(tmp_path_factory.mktemp("drafted") / "study")
