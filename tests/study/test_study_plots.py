"""Charts of a study: what is in them, and that they stand alone as files."""

from __future__ import annotations

from xml.etree import ElementTree

from vocabforge.evaluate.reports.page import PageChart
from vocabforge.study.report.plots import study_panels
from vocabforge.study.report.results import StudyResults


def test_all_charts_are_there(panels: list[PageChart]) -> None:
    assert [panel.key for panel in panels] == [
        "share",
        "speed",
        "categories",
        "steps",
        "heads-machine",
        "heads-roofline",
    ]


def test_every_name_has_a_line(results: StudyResults, panels: list[PageChart]) -> None:
    names = {one.name for one in results.methods}
    by_key = {panel.key: panel for panel in panels}
    assert {name for _, name in by_key["speed"].legend} == names
    assert {name for _, name in by_key["share"].legend} == names - {"low rank"}


def test_files_stand_alone(panels: list[PageChart]) -> None:
    files = {panel.key: panel.file for panel in panels}
    for name, text in files.items():
        root = ElementTree.fromstring(text)
        assert root.tag.endswith("svg"), name
        assert "var(--" not in text, name
    assert "FR-Spec" in files["share"]  # its legend


def test_without_times_no_speeds(results: StudyResults) -> None:
    bare = [
        one.model_copy(
            update={
                "cells": {
                    temperature: {
                        shape: {
                            key: cell.model_copy(update={"predicted": {}}) for key, cell in groups.items()
                        }
                        for shape, groups in shapes.items()
                    }
                    for temperature, shapes in one.cells.items()
                }
            }
        )
        for one in results.methods
    ]
    found = study_panels(results.model_copy(update={"methods": bare, "columns": []}))
    assert [panel.key for panel in found] == ["share", "categories", "steps"]
