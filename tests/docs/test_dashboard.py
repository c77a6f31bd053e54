"""The site's page of measurements: every figure of the files, and a damaged file by its name."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.evaluate.results_sample import sample_results
from tests.worlds import ROOT
from vocabforge.core.errors import DataError
from vocabforge.evaluate.reports.tables import figure_rows


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


dashboard = tool("dashboard")


def table_rows(page: str) -> list[list[str]]:
    """Texts of the cells of each row; small text follows the figure."""
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    return [[re.sub(r"<[^>]+>", " ", cell).strip() for cell in row] for row in cells if row]


def test_every_method_and_task_has_a_row(tmp_path: Path) -> None:
    results = sample_results(3)
    (tmp_path / "sample.json").write_text(results.model_dump_json(), "utf-8")
    page = dashboard.dashboard_html(tmp_path)
    rows = table_rows(page)
    assert len(rows) == len(results.methods) * len(figure_rows(results))
    assert {len(row) for row in rows} == {len(dashboard.COLUMNS)}
    speedup = results.methods[1].summary.overall.speedup
    row = dict(zip(dashboard.COLUMNS, rows[1], strict=True))
    assert row["speed-up"].split() == [f"{speedup.value:.2f}", f"[{speedup.low:.2f}–{speedup.high:.2f}]"]
    assert f'data-key="{speedup.value}"' in page
    assert row["machine"].startswith("A card with 24 GB")
    assert (row["method"].split()[0], row["task"], row["command"]) == ("eagle3", "overall", results.command)
    assert page.count("<svg") == 1
    assert f'href="{tmp_path.name}/sample.json"' in page


def test_the_readmes_chart_shows_the_committed_figures() -> None:
    """After new results: python .ci/dashboard.py"""
    assert dashboard.CHART.read_text("utf-8") == dashboard.speedups_svg()


def test_names_are_text(tmp_path: Path) -> None:
    results = sample_results(2)
    target = results.target.model_copy(update={"name": "<script>x</script>"})
    named = results.model_copy(update={"target": target})
    (tmp_path / "sample.json").write_text(named.model_dump_json(), "utf-8")
    page = dashboard.dashboard_html(tmp_path)
    assert "<script>x" not in page
    assert "&lt;script&gt;x" in page


@pytest.mark.parametrize("text", ["{", '{"schema_version": 99}', '{"schema_version": 3}', "[]"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "broken.json").write_text(text, "utf-8")
    with pytest.raises(DataError, match=r"broken\.json"):
        dashboard.dashboard_html(tmp_path)


def test_the_repositorys_measurements_are_on_the_page() -> None:
    page = dashboard.dashboard_html()
    for file in (ROOT / "docs" / "results").iterdir():
        assert f'href="results/{file.name}"' in page
    assert len(table_rows(page)) >= 6


def test_the_build_fills_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(ROOT / ".ci")
    text = (ROOT / "docs" / "dashboard.md").read_text("utf-8")
    page = SimpleNamespace(file=SimpleNamespace(src_uri="dashboard.md"))
    made = tool("mkdocs_hooks").on_page_markdown(text, page, None, None)
    assert table_rows(text) == []
    assert table_rows(made) == table_rows(dashboard.dashboard_html())
