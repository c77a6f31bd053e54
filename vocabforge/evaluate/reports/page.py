"""Self-contained HTML pages: one look for all reports; they load nothing and run no script."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.console import DataTable, FactList
from .plots import LIGHT, MARKERS, METHOD_COLOURS, Trace, trace_lines

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


# Background and text colour by draft step, the last for all later ones: matplotlib's viridis at six places. Each is
# darker than the one before (by 10 L* or so), so that no hue has to be told apart, in light or dark mode.
STEP_COLOURS = (
    ("#fde725", "#000"),
    ("#8ed645", "#000"),
    ("#37b878", "#000"),
    ("#1f958b", "#000"),
    ("#2c738e", "#fff"),
    ("#3c4f8a", "#fff"),
)


@dataclass(frozen=True)
class PageCard:
    """A headline figure; ``tone`` is ``good``, ``bad`` or nothing."""

    what: str
    value: str
    note: str
    tone: str = ""


@dataclass(frozen=True)
class PageChart:
    """A chart of ``plots.py`` with its words; ``legend`` has colour numbers and names."""

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
    """Blocks behind a line that unfolds them."""

    title: str
    blocks: Sequence[Block]


class AnswerToken(NamedTuple):
    """Text, draft step (0: the target's own token) and accepted length of its cycle (0: of the prompt's pass)."""

    text: str
    step: int
    length: int


@dataclass(frozen=True)
class AnswerPair:
    """An answer with its tokens coloured by draft step, and another beside it; ``note`` is about the first."""

    title: str
    question: str
    note: str
    name: str
    tokens: Sequence[AnswerToken]
    other_name: str
    other: str


@dataclass(frozen=True)
class StepLegend:
    """The colours of answers down to the deepest draft step shown."""

    deepest: int

    @property
    def names(self) -> list[str]:
        """Of the target's own token and of each colour."""
        last = len(STEP_COLOURS)
        ordinals = ["1st", "2nd", "3rd", *(f"{step}th" for step in range(4, last))]
        ordinals.append(f"{last}th" + (" and later" if self.deepest > last else ""))
        return ["the target's own token", *(f"{name} draft token" for name in ordinals[: self.deepest])]


Block = PageChart | DataTable | FactList | CodeBlock | Folded | AnswerPair | StepLegend | str


@dataclass(frozen=True)
class PageSection:
    """A heading with its blocks (a text is a note); ``key`` is the target of its link in the contents."""

    title: str
    blocks: Sequence[Block]
    key: str = ""


@dataclass(frozen=True)
class ReportPage:
    """A report.

    Attributes:
        kind: such as ``evaluation``.
        lead, about: the result in a sentence; what was measured, and how.
        alarms: what must be read first; the others are ``warnings``.
    """

    kind: str
    title: str
    sections: Sequence[PageSection]
    lead: str = ""
    about: str = ""
    alarms: Sequence[str] = ()
    warnings: Sequence[str] = ()
    cards: Sequence[PageCard] = ()


def line_chart(
    name: str, title: str, note: str, labels: tuple[str, str], traces: Sequence[Trace], **settings: Any
) -> list[PageChart]:
    """A chart of the curves that have a value, with those that have a label in its legend; nothing if none has one.

    Args:
        name, labels, settings: see :func:`~vocabforge.evaluate.reports.plots.trace_lines`.
    """
    known = [trace for trace in traces if any(value is not None for value in trace.y)]
    if not known:
        return []
    legend = [(one.index, one.label + (" (dashed)" if one.dashed else "")) for one in known if one.label]
    return [PageChart(title, note, trace_lines(name, labels, known, **settings), legend)]


def render_report_page(page: ReportPage) -> str:
    """HTML text of a report; sections without blocks are left out."""
    sections = [one for one in page.sections if one.blocks]
    template = _environment().get_template("page.html.j2")
    colours = {"colours": METHOD_COLOURS, "light_colours": LIGHT, "step_colours": STEP_COLOURS}
    return template.render(page=page, sections=sections, **colours)


@functools.cache
def _environment() -> Environment:
    """One for all pages: it keeps the compiled template."""
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
    """In lines of a few words: a long heading would take the width from the figures."""
    whole: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return "\n".join(textwrap.fill(line, 13, **whole) for line in text.split("\n"))


def _groups(blocks: Sequence[Block]) -> list[tuple[str, list[Block]]]:
    """Neighbouring blocks of one kind together: charts and panels are laid out side by side."""
    kinds = {
        PageChart: "charts",
        FactList: "panels",
        CodeBlock: "panels",
        DataTable: "tables",
        Folded: "folded",
        AnswerPair: "answers",
        StepLegend: "steps",
    }

    return [(kind, list(group)) for kind, group in groupby(blocks, lambda one: kinds.get(type(one), "notes"))]


def _swatch(index: int) -> Markup:
    """Colour by colour, then the shape changes: the two together are a method's own (49 of them)."""
    from markupsafe import Markup

    shape = index // METHOD_COLOURS % len(MARKERS)
    return Markup('<span class="swatch c{} s{}"></span>').format(index % METHOD_COLOURS, shape)


def _name(text: str) -> Markup:
    """The name with a place for a line break behind each of ``+ : - / _``."""
    from markupsafe import Markup, escape

    parts = re.split(r"(?<=[+:/_-])(?=[^+:/_-])", text)
    return Markup("<wbr>").join(escape(part) for part in parts)
