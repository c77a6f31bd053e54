"""``vocabforge export``."""

from __future__ import annotations

from .app import JsonOption, print_json
from .export_options import ExportRequest


def export(request: ExportRequest, as_json: JsonOption = False) -> None:
    """Write a drafter as a decoder or server reads it, with a model card, optionally with a restricted head.

    The folder is read back and computed with before it takes its name. `--format native` is also the import of a
    drafter that was made elsewhere: this toolkit can then train it on and change its vocabulary.

    Example: `vocabforge export --drafter run/drafter --vocab subset/ --format sglang-eagle3 --output served/`
    """
    from .export_run import run_export

    facts = run_export(request, quiet=as_json)
    if as_json:
        print_json(facts)
