"""``vocabforge push``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..app import JsonOption, echo, print_json


def push(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Drafter that export wrote, or draft vocabulary.")
    ],
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the Hugging Face Hub.")],
    public: Annotated[
        bool, typer.Option("--public", help="Make the repository public [default: private].")
    ] = False,
    license: Annotated[
        str | None,
        typer.Option("--license", metavar="NAME", help="Licence for the card, such as apache-2.0."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Upload a drafter or a draft vocabulary with its card to the Hugging Face Hub.

    Verifies the folder, then uploads its files in one commit. The uploaded manifest contains neither your
    command line nor your paths.

    Example: `vocabforge push served/ me/qwen3-0.6b-eagle3 --license apache-2.0`
    """
    from ...core.artifact import open_artifact
    from ...core.hub import push_files
    from ...export.publish import published

    files = published(open_artifact(folder), name, license)
    address = push_files(name, files, public=public)
    if as_json:
        print_json({"address": address, "public": public, "files": sorted(files)})
    else:
        echo(f"{address} ({'public' if public else 'private'}): {len(files)} files")
