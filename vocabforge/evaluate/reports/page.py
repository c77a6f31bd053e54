"""Self-contained HTML pages without scripts, with a common style for all reports."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.console import DataTable, FactList
from .plots import COLOURS, INK, MARKERS, MUTED, PAPER, RULE, Panel, line_svg

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


# Background and text colour by draft step, the last for all later steps: matplotlib's viridis at six places.
# Each is about 10 L* darker than the previous one, so steps are distinct without hue.
STEP_COLOURS = (
    ("#fde725", "#000"),
    ("#8ed645", "#000"),
    ("#37b878", "#000"),
    ("#1f958b", "#000"),
    ("#2c738e", "#fff"),
    ("#3c4f8a", "#fff"),
)


@dataclass(frozen=True)
class PageChart:
    """A chart of ``plots.py`` with title and note; ``legend`` holds colour numbers and names."""

    title: str
    note: str
    svg: str
    legend: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True)
class CodeBlock:
    """Text to copy, such as a command."""

    text: str
    title: str = ""


@dataclass(frozen=True)
class Folded:
    """Blocks that are initially collapsed under a title."""

    title: str
    blocks: Sequence[Block]


class AnswerToken(NamedTuple):
    """A token's text, draft step (0: the target's own) and accepted length of its cycle (0: prompt)."""

    text: str
    step: int
    length: int


@dataclass(frozen=True)
class ColouredAnswer:
    """An answer with its tokens coloured by draft step."""

    title: str
    question: str
    note: str
    tokens: Sequence[AnswerToken]


Block = PageChart | DataTable | FactList | CodeBlock | Folded | ColouredAnswer | str


@dataclass(frozen=True)
class PageSection:
    """A heading with its blocks (a string is a note); ``key`` is the anchor of its link in the contents."""

    title: str
    blocks: Sequence[Block]
    key: str


def line_chart(name: str, note: str, panel: Panel) -> list[PageChart]:
    """Return a chart of curves with a legend, or an empty list if no curve has a value.

    ``name`` is the prefix of the SVG's ids.
    """
    if not (known := panel.known()):
        return []
    legend = [(trace.index, trace.label) for trace in known if trace.label]
    return [PageChart(panel.title, note, line_svg(name, panel), legend)]


def render_page(
    title: str,
    sections: Sequence[PageSection],
    *,
    lead: str = "",
    about: str = "",
    alarms: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> str:
    """Render a report as HTML; sections without blocks are omitted.

    Args:
        lead: the result in one sentence.
        about: what was measured, and how.
        alarms: messages to read first; less urgent messages are ``warnings``.
    """
    template = _environment().get_template("page.html.j2")
    return template.render(
        title=title,
        sections=[section for section in sections if section.blocks],
        lead=lead,
        about=about,
        alarms=alarms,
        warnings=warnings,
        colours={"ink": INK, "muted": MUTED, "rule": RULE, "paper": PAPER},
        method_colours=COLOURS,
        step_colours=STEP_COLOURS,
    )


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("vocabforge", "evaluate/reports/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(swatch=_swatch, name=_name, heading=_heading, groups=_groups)
    return environment


def _heading(text: str) -> str:
    """Break a heading into lines of a few words: long headings would take space from the figures."""
    whole: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return "\n".join(textwrap.fill(line, 13, **whole) for line in text.split("\n"))


def _groups(blocks: Sequence[Block]) -> list[tuple[str, list[Block]]]:
    kinds = {
        PageChart: "charts",
        FactList: "panels",
        CodeBlock: "panels",
        DataTable: "tables",
        Folded: "folded",
        ColouredAnswer: "answers",
    }

    return [
        (kind, list(group)) for kind, group in groupby(blocks, lambda block: kinds.get(type(block), "notes"))
    ]


def _swatch(index: int) -> Markup:
    """Return a method's swatch; colours repeat with another shape, giving 49 distinct swatches."""
    from markupsafe import Markup

    shape = index // len(COLOURS) % len(MARKERS)
    return Markup('<span class="swatch c{} s{}"></span>').format(index % len(COLOURS), shape)


def _name(text: str) -> Markup:
    """Return the name with a line-break opportunity after each of ``+ : - / _``."""
    from markupsafe import Markup, escape

    parts = re.split(r"(?<=[+:/_-])(?=[^+:/_-])", text)
    return Markup("<wbr>").join(escape(part) for part in parts)
