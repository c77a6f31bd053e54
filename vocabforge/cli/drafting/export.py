"""``vocabforge export``."""

from __future__ import annotations

from typing import Annotated

from ...core.config import ResultOptions
from ...decode.spec import MethodSpec
from ...export.request import ExportRequest
from ..app import print_json
from ..option_groups import FromModel

_HEAD = Annotated[
    MethodSpec,
    FromModel(MethodSpec, only=("dynamic", "shortlist", "budget"), panel="With --format vllm"),
]


def export(request: ExportRequest, drafting: _HEAD, ending: ResultOptions) -> None:
    """Export a drafter to the layout of a decoder or server, with a model card and optional draft vocabulary.

    The exported folder is loaded and tested before it is renamed to --output. `--format native` also imports
    drafters made elsewhere, for further training. `--vocab` prunes, extends or re-maps the drafter's head to
    another draft vocabulary, without training: its rows are copied bit for bit.

    Example: `vocabforge export --drafter run/drafter --vocab subset/ --format sglang-eagle3 --output served/`
    """
    from ...export.run import run_export

    facts = run_export(request, drafting, quiet=ending.as_json, overwrite=ending.overwrite)
    if ending.as_json:
        print_json(facts)
