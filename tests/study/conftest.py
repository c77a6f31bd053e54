"""What several tests of the study share, made once: a drafted study, and the figures of a made-up one."""

from __future__ import annotations

import pytest

from tests.study.drafted_support import make_drafted
from tests.study.report_support import made_up
from vocabforge.evaluate.reports.page import PageChart
from vocabforge.study.config import StudyConfig
from vocabforge.study.layout import StudyLayout
from vocabforge.study.report.plots import study_panels
from vocabforge.study.report.results import StudyResults
from vocabforge.study.report.stage import ReportInputs, assemble


@pytest.fixture(scope="session")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> StudyLayout:
    """A study up to its replay; tests that change it work on a copy."""
    return make_drafted(tmp_path_factory.mktemp("drafted") / "study")


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyConfig, ReportInputs]:
    return made_up(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="session")
def results(study: tuple[StudyConfig, ReportInputs]) -> StudyResults:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vocabforge.evaluate.results.intervals.RESAMPLES", 50)
        return assemble(*study)


@pytest.fixture(scope="session")
def panels(results: StudyResults) -> list[PageChart]:
    return study_panels(results)
