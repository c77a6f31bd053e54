"""Charts of the pages as SVG files of their own."""

from __future__ import annotations

import re

# The page's light colours, for files without a page around them.
LIGHT = {
    "--ink": "#16202c",
    "--muted": "#586474",
    "--rule": "#dfe4ea",
    "--paper": "#ffffff",
    "--m0": "#7b8794",
    "--m1": "#2563eb",
    "--m2": "#c2570c",
    "--m3": "#0d8a5f",
    "--m4": "#8b3fc7",
    "--m5": "#c81e4a",
    "--m6": "#0b7d95",
}


def standalone(svg: str) -> str:
    """A chart of ``plots.py`` as an SVG file of its own, in the colours of the light page."""
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    width, height = size.groups() if size else ("100%", "100%")
    for variable, colour in LIGHT.items():
        svg = svg.replace(f"var({variable})", colour)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{width}" height="{height}" font-family="system-ui, sans-serif"'
    )
    body = re.sub(r"^<svg\b", head, svg)
    paper = f'<rect width="100%" height="100%" fill="{LIGHT["--paper"]}"/>'
    return re.sub(r"(<svg\b[^>]*>)", lambda found: found[1] + paper, body, count=1) + "\n"
