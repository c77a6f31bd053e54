"""``vocabforge regenerate``: the target's own responses to the prompts of a data set."""

from __future__ import annotations

from typing import Any

from ..app import ResultOptions, print_json
from .regenerate_options import RegenerateOptions


def regenerate(asked: RegenerateOptions, result: ResultOptions) -> None:
    """Replace the answers of a data set with the target's own.

    VocabTrim counts these answers, and drafters and rankers train best on them. Every assistant turn is
    regenerated in order; later turns see the new answers. Re-run the command to resume an interrupted run.

    Examples: `vocabforge regenerate --input chat.jsonl --server http://gpu1:8000 --server http://gpu2:8000
    --temperature 0.7 --output responses/` and `vocabforge regenerate --input chat.jsonl --target
    Qwen/Qwen3-0.6B --output responses/`
    """
    from ...core.artifact import check_output
    from ...core.console import say
    from ...corpus.regenerate.backends import RegenerateJob
    from ...corpus.regenerate.log import RESPONSES
    from ...corpus.regenerate.run import regenerate as run
    from ...corpus.sources import document
    from .regenerate_setup import choose_side

    output = asked.output
    check_output(output, overwrite=result.overwrite)
    generation, backend = choose_side(asked)
    reading = document.SourceOptions(
        text_field=asked.prompt_field, strict=asked.strict, sample=asked.sample, seed=asked.seed
    )
    task = RegenerateJob(
        list(asked.input),
        reading,
        generation,
        asked.first_turn_only,
        asked.empty == "keep",
        asked.drop_failed,
    )
    meta = run(task, backend, output, overwrite=result.overwrite, fresh=asked.fresh)
    if result.as_json:
        print_json({"responses": str(output / RESPONSES), **meta})
        return
    for line in summary(meta):
        say(line)
    say(f"The responses are in {output / RESPONSES}")


def summary(meta: dict[str, Any]) -> list[str]:
    """What became of rows and answers, in words."""
    lines = [f"{meta['rows_written']:,} of {meta['rows']:,} rows written, {meta['answers']:,} answers"]
    told = {
        "rows_without_prompt": "rows hold no prompt",
        "rows_failed": "rows left out, since a request found no answer",
        "rows_dropped_empty": "rows left out, since an answer was empty",
        "rows_ended_by_tools": "rows end early: the target calls other tools than the data set's results answer",
        "answers_truncated": "answers were cut by --max-tokens",
        "answers_empty": "answers were empty",
    }
    return lines + [f"{meta[name]:,} {words}" for name, words in told.items() if meta[name]]
