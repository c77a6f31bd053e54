"""``vocabforge push``."""

from __future__ import annotations

from pathlib import Path

from ..core.config import StrictModel, option
from .app import JsonOption, echo, print_json


class PushRequest(StrictModel):
    """What to upload, and where."""

    folder: Path = option(..., "Drafter that export wrote, or draft vocabulary.", "DIR", positional=True)
    name: str = option(..., "Repository on the Hugging Face Hub.", "OWNER/NAME", positional=True)
    public: bool = option(False, "Make the repository public [default: private].")
    license: str | None = option(None, "Licence for the card, such as apache-2.0.", "NAME")


def push(asked: PushRequest, as_json: JsonOption = False) -> None:
    """Upload a drafter or a draft vocabulary with its card to the Hugging Face Hub.

    Verifies the folder, then uploads its files in one commit. The uploaded manifest contains neither your
    command line nor your paths.

    Example: `vocabforge push served/ me/qwen3-0.6b-eagle3 --license apache-2.0`
    """
    from ..core.artifact import open_artifact
    from ..core.hub import push_files
    from ..export.publish import published

    files, public = published(open_artifact(asked.folder), asked.name, asked.license), asked.public
    address = push_files(asked.name, files, public=public)
    if as_json:
        print_json({"address": address, "public": public, "files": sorted(files)})
    else:
        echo(f"{address} ({'public' if public else 'private'}): {len(files)} files")
