"""``vocabforge regenerate``: the target's own responses to the prompts of a data set."""

from __future__ import annotations

from typing import Any

from ...core.config import ResultOptions
from ...core.console import say
from ...corpus.regenerate.request import RegenerateRequest
from ..app import print_json


def regenerate(asked: RegenerateRequest, result: ResultOptions) -> None:
    """Replace the answers of a data set with the target's own.

    VocabTrim counts these answers, and drafters and rankers train best on them. Every assistant turn is
    regenerated in order; later turns see the new answers. Re-run the command to resume an interrupted run.

    Examples: `vocabforge regenerate --input chat.jsonl --server http://gpu1:8000 --server http://gpu2:8000
    --temperature 0.7 --output responses/` and `vocabforge regenerate --input chat.jsonl --target
    Qwen/Qwen3-0.6B --output responses/`
    """
    from ...corpus.regenerate.log import RESPONSES
    from ...decode.regenerate import run_regenerate

    output = asked.output
    meta = run_regenerate(asked, overwrite=result.overwrite)
    if result.as_json:
        print_json({"responses": str(output / RESPONSES), **meta})
        return
    for line in summary(meta):
        say(line)
    say(f"The responses are in {output / RESPONSES}")


def summary(meta: dict[str, Any]) -> list[str]:
    """Summarise rows and answers, one line each."""
    lines = [f"{meta['rows_written']:,} of {meta['rows']:,} rows written, {meta['answers']:,} answers"]
    told = {
        "rows_without_prompt": "rows have no prompt",
        "rows_failed": "rows left out, since a request found no answer",
        "rows_dropped_empty": "rows left out, since an answer was empty",
        "rows_ended_by_tools": "rows end early: the target calls other tools than the data set's results answer",
        "answers_truncated": "answers were cut by --max-tokens",
        "answers_empty": "answers were empty",
    }
    return lines + [f"{meta[name]:,} {words}" for name, words in told.items() if meta[name]]
