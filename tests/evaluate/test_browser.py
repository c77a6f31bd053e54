"""The pages in a real browser: Chromium without a window, on phones and on a desk, light and dark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.evaluate.results_sample import sample_results
from vocabforge.evaluate.reports.evaluation import render_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# All that a person would see go wrong; runs in the page.
LOOK = """() => {
  const root = document.scrollingElement, found = [];
  if (root.scrollWidth > root.clientWidth) found.push(`wider than the window: ${root.scrollWidth}`);
  for (const fold of document.querySelectorAll('details')) fold.open = true;
  if (root.scrollWidth > root.clientWidth) found.push(`wider than the window, unfolded: ${root.scrollWidth}`);
  for (const svg of document.querySelectorAll('svg')) {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    if (!(box.width > 0 && box.height > 0)) found.push('a chart without a size');
    const scale = box.width / view.width;
    for (const text of svg.querySelectorAll('text')) {
      const at = text.getBoundingClientRect(), edge = 1 * scale, words = text.textContent.trim();
      if (at.left < box.left - edge || at.right > box.right + edge || at.top < box.top - edge
          || at.bottom > box.bottom + edge) found.push(`outside of its chart: ${words}`);
      const size = parseFloat(getComputedStyle(text).fontSize) * scale;
      if (size < 11.95) found.push(`text of ${size} pixels in a chart: ${words}`);
    }
  }
  for (const table of document.querySelectorAll('table')) {
    const box = table.closest('.scroll');
    if (!box) found.push('a table that cannot be scrolled');
    else if (getComputedStyle(box).overflowX !== 'auto') found.push('a box that does not scroll');
    else if (box.getBoundingClientRect().right > root.clientWidth) found.push('a box wider than the window');
  }
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode, about = node.parentElement;
    if (!node.textContent.trim() || about.closest('svg')) continue;
    const size = parseFloat(getComputedStyle(about).fontSize);
    if (size < 12) found.push(`text of ${size} pixels: ${node.textContent.trim()}`);
  }
  return found;
}"""

# Least contrast (WCAG) of all text against what lies behind it, and of the charts' colours against their panel.
CONTRAST = """() => {
  const light = rgb => rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const between = (a, b) => {
    const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  };
  let text = [99, ''], colours = [99, ''];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const about = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || about.closest('svg')) continue;
    const ratio = between(numbers(getComputedStyle(about).color), behind(about));
    if (ratio < text[0]) text = [ratio, walk.currentNode.textContent.trim()];
  }
  for (const swatch of document.querySelectorAll('.swatch')) {
    const ratio = between(numbers(getComputedStyle(swatch).backgroundColor), behind(swatch.parentElement));
    if (ratio < colours[0]) colours = [ratio, swatch.className];
  }
  return {text, colours, ground: light(behind(document.body))};
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    system = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    with api.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=system, args=["--no-sandbox"])
        except api.Error as error:
            pytest.skip(f"no Chromium starts here: {str(error).splitlines()[0]}")
        yield started
        started.close()


def troubles(
    browser: Any, file: Path, width: int, scheme: str = "light", *, script: bool = True
) -> list[str]:
    """What a reader, or the browser's console, would complain of."""
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, java_script_enabled=script
    )
    try:
        page, found = context.new_page(), []
        page.on("console", lambda said: found.append(f"console: {said.type} {said.text}"))
        page.on("pageerror", lambda error: found.append(f"page error: {error}"))
        page.on("request", lambda request: found.append(f"request: {request.url}"))
        page.goto(file.as_uri())
        assert found == [f"request: {file.as_uri()}"], found
        return page.evaluate(LOOK) if script else []
    finally:
        context.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine methods, one with a long name, faults, failures and quality: every section of the page."""
    results = sample_results(9, 2, categories={"writing": 10, "math_reasoning": 80}, scorer="gsm8k")
    last = results.methods[-1].model_copy(
        update={"name": "eagle3+a-name-much-longer-than-a-phone-is-wide+router-of-8192-tokens"}
    )
    results = results.model_copy(update={"methods": [*results.methods[:-1], last]})
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(render_report(results), encoding="utf-8")
    return file


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (390, "light"), (1280, "light")])
def test_the_report_can_be_read(browser: Any, report: Path, width: int, scheme: str) -> None:
    assert troubles(browser, report, width, scheme) == []
