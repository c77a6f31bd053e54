"""Parts of a vocabulary study: what their manifests say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts import Request, View, facts_table, scalars

if TYPE_CHECKING:
    from ...core.artifact import Artifact


def view(artifact: Artifact, request: Request) -> View:
    """Numbers and names of the manifest; the report itself is a page."""
    return View(dict(artifact.meta), [facts_table(scalars(artifact.meta))])
