"""Pages of reports: whatever stands in a name, nothing is run or loaded."""

from __future__ import annotations

import re

import pytest

from tests.support import ROOT
from vocabforge.evaluate.page import render_page

TEMPLATES = sorted((ROOT / "vocabforge" / "evaluate").glob("*.html.j2"))
# Charts are made by our own code, whose texts are escaped (test_comparison_report.py, test_coverage_report.py).
CHARTS = re.compile(r"\b(svg|wide|narrow|check_chart)\|safe")


def test_every_page_forbids_scripts_and_loading() -> None:
    page = (ROOT / "vocabforge/evaluate/page.html.j2").read_text("utf-8")
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">', page)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules["default-src"] == "'none'"
    assert "script-src" not in rules
    assert set(rules) <= {"default-src", "style-src", "img-src", "base-uri", "form-action"}
    assert page.index("Content-Security-Policy") < page.index("<style>")
    others = [path for path in TEMPLATES if path.name != "page.html.j2"]
    for path in others:
        assert path.read_text("utf-8").startswith('{% extends "page.html.j2" %}'), path.name


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_holds_a_script_or_trusts_a_text(path: object) -> None:
    text = path.read_text("utf-8")  # type: ignore[attr-defined]
    assert not re.search(
        r"<script|\son\w+=|javascript:|<iframe|<object|<link(?! rel=\"icon\")|autoescape", text, re.IGNORECASE
    )
    assert not re.search(r"\|\s*safe", CHARTS.sub("", text))


def test_a_template_of_another_folder_is_not_found() -> None:
    with pytest.raises(Exception, match="page"):
        render_page("../cli/page.html.j2")
