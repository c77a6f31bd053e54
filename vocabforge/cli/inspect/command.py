"""``vocabforge inspect``: show an artefact's contents and origin."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from ...core.config import Positive, StrictModel, option
from ..app import JsonOption, print_json, stdout_console

if TYPE_CHECKING:
    from ...core.artifact import Artifact
    from .parts import View

_COMMAND_LENGTH = 400
_FILES = 12
_WITH_TOKENS = ("counts", "subset", "clusters")


class InspectRequest(StrictModel):
    """The artefact, and how much of it to show."""

    path: Path = option(..., "Folder of any artefact.", "DIR", positional=True)
    top: Positive = option(10, "Rows per list.", "N")
    tokenizer: Path | None = option(
        None, "Tokenizer for displaying text [default: the one recorded in the artefact].", "PATH"
    )


def inspect(asked: InspectRequest, as_json: JsonOption = False) -> None:
    """Verify an artefact and show its contents: counts, draft vocabulary, clusters, drafter, evaluation, ...

    Tokens are printed with a space as ␣ and non-text bytes as \\\\xNN.

    Example: `vocabforge inspect counts/ --top 20`
    """
    from ...core.artifact import open_artifact
    from ...core.errors import ArtifactError
    from ...core.files import form_errors
    from ...core.registry import resolve
    from . import VIEWS
    from .names import names_for
    from .parts import ViewRequest

    artifact = open_artifact(asked.path)
    if artifact.kind not in VIEWS:
        raise ArtifactError(
            "this version cannot read artefacts of this kind",
            got=artifact.kind,
            expected=", ".join(VIEWS),
            source=asked.path,
            remedy="use the version that wrote it",
        )
    names = names_for(artifact, asked.tokenizer)
    with form_errors(
        f"this {artifact.kind} artefact does not hold what one of this kind does",
        asked.path,
        remedy="use the version that wrote it",
    ):
        view: View = resolve(VIEWS, artifact.kind, "kind of artefact")(
            artifact, ViewRequest(asked.top, names)
        )
        tables = view.tables()
    header = _header(artifact)
    if as_json:
        print_json(
            {**header, "tokenizer": str(names.source) if names.source else None, "content": view.facts}
        )
    else:
        _print(header, tables, names.source is not None)


def _header(artifact: Artifact) -> dict[str, Any]:
    """Return the fields that every artefact has; its files are already verified."""
    manifest = artifact.manifest
    command = [str(word) for word in manifest.get("command") or ()]
    if command and Path(command[0]).name in ("vocabforge", "__main__.py"):
        command[0] = "vocabforge"
    return {
        "kind": artifact.kind,
        "path": str(artifact.path),
        "created": manifest.get("created"),
        "command": shlex.join(command),
        "versions": dict(manifest.get("versions") or {}),
        "git_revision": manifest.get("git_revision"),
        "content_hash": artifact.content_hash,
        "parents": dict(manifest.get("parents") or {}),
        "files": {name: entry["bytes"] for name, entry in manifest["files"].items()},
        "verified": True,
    }


def _print(header: dict[str, Any], tables: Sequence[Any], known: bool) -> None:
    from ...core.console import FactList

    files = header["files"]
    # List only the first files: a cache may have thousands.
    listed = ", ".join(f"{name} ({size:,} bytes)" for name, size in list(files.items())[:_FILES])
    facts = {name.replace("_", " "): value for name, value in header.items()}
    facts["command"] = shorten(header["command"], _COMMAND_LENGTH, placeholder="…")
    facts["files"] = listed + (f" and {len(files) - _FILES:,} more" if len(files) > _FILES else "")
    facts["verified"] = f"{len(files)} file{'s' if len(files) != 1 else ''}, every hash as recorded"
    out = stdout_console(highlight=True)
    out.print(FactList(facts))
    for item in tables:
        out.print()
        out.print(item)
    if not known and header["kind"] in _WITH_TOKENS:
        out.print("Tokens are shown by id: give --tokenizer PATH to see their texts.", style="dim")
