"""Regenerate a data set with the target's own responses; every answer is logged."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.artifact import check_output, write_artifact
from ...core.console import say
from ...core.errors import DataError, VocabForgeError
from ...core.files import disk_errors
from ...core.progress import ProgressBar
from ..sources.bytes import Problems
from ..sources.inputs import expand_paths, is_hub
from .backends import Backend, RegenerateJob, RegenerateRun
from .log import RESPONSES, AnswerLog
from .rows import Walk, conversation_digest, json_line, output_row

RESPONSES_KIND = "responses"
COUNTS = (
    "rows",
    "rows_written",
    "rows_without_prompt",
    "rows_failed",
    "rows_dropped_empty",
    "rows_ended_by_tools",
    "answers",
    "answers_truncated",
    "answers_empty",
    "completion_tokens",
)
"""Counts in the manifest; answers include those of dropped rows."""


def regenerate(
    work: RegenerateJob, backend: Backend, output: Path, *, overwrite: bool = False, fresh: bool = False
) -> dict[str, Any]:
    """Answer every prompt and write the artefact ``output``; the same call resumes an interrupted run.

    Returns:
        The manifest's meta: settings, sources, counts.

    Raises:
        UsageError: the output cannot be written, or an unfinished run there had other settings or inputs.
        VocabForgeError: no server is left, or requests failed and ``drop_failed`` is off.
    """
    check_output(output, overwrite=overwrite)
    problems = Problems(strict=work.sources.strict)
    sources, total = scan(work, problems)
    if not total:
        raise DataError(
            "the input holds no prompt to answer",
            got=problems.summary() or f"{sum(source['rows'] for source in sources.values()):,} rows",
            expected="conversations, or prompts named by --prompt-field",
            remedy="check the input, and --prompt-field if prompts are texts",
        )
    settings = {"generation": work.generation.facts(), "inputs": sources}
    with AnswerLog(output.with_name(f"{output.name}.partial"), settings, fresh=fresh) as log:
        if log:
            say(f"{len(log):,} answers are kept from the previous run")
        with ProgressBar("Answering", total, "answers", initial=min(len(log), total)) as bar:
            run = RegenerateRun(log, bar)
            backend(work, run)
        if run.failed and not work.drop_failed:
            raise VocabForgeError(
                "some requests found no answer",
                got=f"{run.failed:,} of {total:,}",
                remedy="run the same command again to try them again, or add --drop-failed to leave their "
                "rows out; finished answers are kept",
            )
        meta = _write(work, log, sources, dict(problems.kinds), output, overwrite=overwrite)
        log.remove()
    if (summary := problems.summary()) is not None:
        say(summary)
    return meta


def scan(work: RegenerateJob, problems: Problems) -> tuple[dict[str, dict[str, Any]], int]:
    """Return rows and content hash of each source by index and name, and the maximum number of answers."""
    sources: dict[str, dict[str, Any]] = {}
    digests: dict[str, Any] = {}
    total = 0
    for number, path in enumerate(expand_paths(work.inputs), start=1):
        name = f"{number} {path if is_hub(path) else path.name}"
        sources[name], digests[name] = {"rows": 0}, hashlib.sha256()
        part = replace(work, inputs=[path])
        for conversation in part.conversations(problems):
            sources[name]["rows"] += 1
            digests[name].update(conversation_digest(conversation))
            total += work.walk(conversation).open_turns
    for name, digest in digests.items():
        sources[name]["sha256"] = digest.hexdigest()
    return sources, total


def _write(
    work: RegenerateJob,
    log: AnswerLog,
    sources: dict[str, dict[str, Any]],
    problems: dict[str, int],
    output: Path,
    *,
    overwrite: bool,
) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    temporary = log.folder / RESPONSES
    with disk_errors(temporary), open(temporary, "wb") as file:
        for conversation in work.conversations():
            walk = work.walk(conversation)
            while (request := walk.request()) is not None and (answer := log.get(request.key)) is not None:
                walk.add(answer)
            _count(walk, counts, reasons, failed=request is not None)
            if request is None and walk.answers and walk.ended != "empty":
                file.write(json_line(output_row(walk, work.generation)))
    expected = sum(source["rows"] for source in sources.values())
    if counts["rows"] != expected or (counts["rows_failed"] and not work.drop_failed):
        raise DataError("the input changed while it was answered", remedy="run the same command again")
    meta = {
        "generation": work.generation.facts(),
        "first_turn_only": work.first_turn_only,
        "keep_empty": work.keep_empty,
        "inputs": sources,
        **{name: counts[name] for name in COUNTS},
        "finish_reasons": dict(sorted(reasons.items())),
        "skipped": problems,
    }
    with write_artifact(output, RESPONSES_KIND, meta, overwrite=overwrite) as folder:
        temporary.replace(folder / RESPONSES)
    return meta


def _count(walk: Walk, counts: Counter[str], reasons: Counter[str], *, failed: bool) -> None:
    counts["rows"] += 1
    if failed:
        counts["rows_failed"] += 1
    elif not walk.answers:
        counts["rows_without_prompt"] += 1
    elif walk.ended == "empty":
        counts["rows_dropped_empty"] += 1
    else:
        counts["rows_written"] += 1
        counts["rows_ended_by_tools"] += walk.ended == "tools"
    for answer in walk.answers:
        reasons[answer.finish_reason] += 1
        counts["answers"] += 1
        counts["answers_truncated"] += answer.truncated
        counts["answers_empty"] += answer.empty
        counts["completion_tokens"] += answer.completion_tokens or 0
