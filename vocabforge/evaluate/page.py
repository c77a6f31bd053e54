"""What all HTML pages share: one look, one set of filters, nothing loaded from anywhere."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from .plots import MARKER_NAMES, METHOD_COLOURS

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

SHAPES = len(MARKER_NAMES)


def render_page(template: str, **values: Any) -> str:
    """HTML text of a template of this package that extends ``page.html.j2``.

    Filters: ``number(digits)``, ``percent(digits)`` (of a share), ``integer``; None is shown as a dash.
    ``name``: a name that a narrow column breaks between its parts.
    ``swatch(index)``: a method's colour and marker, as the charts draw it.
    """
    return _environment().get_template(template).render(colours=METHOD_COLOURS, **values)


@functools.cache
def _environment() -> Environment:
    """One for all pages: it keeps the compiled templates."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("vocabforge", "evaluate"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=_number, percent=_percent, integer=_integer, swatch=_swatch, name=_name)
    return environment


def _swatch(index: int) -> Markup:
    """Colour by colour, then the shape changes: the two together are a method's own (49 of them)."""
    from markupsafe import Markup

    shape = index // METHOD_COLOURS % SHAPES
    return Markup('<span class="swatch c{} s{}"></span>').format(index % METHOD_COLOURS, shape)


def _name(text: str) -> Markup:
    """The name with a place for a line break behind each of ``+ : - / _``."""
    from markupsafe import Markup, escape

    parts = re.split(r"(?<=[+:/_-])(?=[^+:/_-])", text)
    return Markup("<wbr>").join(escape(part) for part in parts)


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _integer(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _percent(value: float | None, digits: int = 0) -> str:
    # + 0.0: what rounds to nothing is shown without a sign
    return "–" if value is None else f"{round(100 * value, digits) + 0.0:.{digits}f}%"
