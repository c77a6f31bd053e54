"""Run a whole evaluation as one artefact: answers, side files, results.json and report.html."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..core.artifact import check_output, write_artifact
from ..core.files import atomic_write, atomic_write_json
from ..core.provenance import command_line, git_revision
from .benchmarks import Benchmark
from .results.answers import write_rows
from .results.schema import ARTIFACT_KIND, RESULTS, Results
from .results.settings import RunSettings
from .run.journal import EvaluationJournal
from .run.request import Asking
from .run.runner import run_identity, run_methods

if TYPE_CHECKING:
    from ..corpus.tokenizer.tokenizer import TextTokenizer
    from ..decode.build.methods import Method


@dataclass(frozen=True)
class Provenance:
    """Inputs and environment of a measurement, recorded with the figures; ``parents``: role -> hash."""

    target: str
    environment: Mapping[str, Any]
    fingerprint: str | None = None
    tokenizer: str | None = None
    parents: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    command: Sequence[str] = field(default_factory=command_line)


@dataclass(frozen=True)
class Evaluation:
    """Specification of an evaluation: questions, methods (plain decoding first), settings and model."""

    benchmark: Benchmark
    methods: Sequence[Method]
    tokenizer: TextTokenizer | None  # None if servers are evaluated and no tokenizer is known
    settings: RunSettings
    provenance: Provenance
    baseline: bool = True  # whether the first method is plain decoding
    asking: type[Asking] = Asking

    @property
    def names(self) -> list[str]:
        """Names of the methods, in order."""
        return [method.name for method in self.methods]

    def identity(self) -> dict[str, Any]:
        """Return the inputs that determine the figures; an interrupted run only resumes if they are equal."""
        return {
            "vocabforge": __version__,
            "revision": git_revision(),
            "target": self.provenance.fingerprint or self.provenance.target,
            "benchmark": f"{self.benchmark.name}, sha256 {self.benchmark.sha256}",
            "parents": dict(self.provenance.parents),
            "environment": dict(self.provenance.environment),
            "facts": {name: str(value) for name, value in self.provenance.facts.items()},
        }

    def model_ids(self) -> dict[str, str]:
        """Return the ``model_id`` of the answer rows by method."""
        dtype = self.provenance.environment.get("dtype", "unknown")
        tail = f"{dtype}-temp-{self.settings.temperature}"
        return {name: f"{self.provenance.target}-{name}-{tail}" for name in self.names}


def evaluate_methods(
    output: Path,
    evaluation: Evaluation,
    *,
    overwrite: bool = False,
    fresh: bool = False,
    synchronise: Callable[[], None] = lambda: None,
    logs: Mapping[str, Path] | None = None,
) -> Results:
    """Run every method over the benchmark and write the evaluation artefact (files: docs/formats.md).

    An interrupted run leaves ``OUTPUT.partial``, and the same call resumes it.

    Args:
        fresh: start over instead of resuming an interrupted run.
        synchronise: wait for the device; called before and after each timed call.
        logs: method -> log file of a server that was started; copied to ``servers/METHOD.log``.

    Raises:
        UsageError: ``output`` exists, two methods share a name, or files of another run are in the way.
        DataError: no question could be answered.
    """
    check_output(output, overwrite=overwrite)
    provenance, settings = evaluation.provenance, evaluation.settings
    meta = {
        "benchmark": evaluation.benchmark.name,
        "benchmark_sha256": evaluation.benchmark.sha256,
        "methods": evaluation.names,
        "settings": settings.to_dict(),
    }
    asking = evaluation.asking(evaluation.tokenizer, settings, synchronise)  # type: ignore[arg-type]
    questions, methods, model_ids = evaluation.benchmark.questions, evaluation.methods, evaluation.model_ids()
    identity = run_identity(questions, methods, asking, model_ids) | evaluation.identity()
    partial = output.with_name(f"{output.name}.partial")
    with EvaluationJournal(partial, identity, fresh=fresh) as journal:
        with write_artifact(
            output,
            ARTIFACT_KIND,
            meta,
            parents=provenance.parents,
            config=provenance.facts,
            overwrite=overwrite,
        ) as folder:
            failures = run_methods(questions, methods, asking, folder, journal, model_ids)
            write_rows(folder / "failures.jsonl", [failure.model_dump() for failure in failures])
            # Import modules of the later stages after the runs.
            from .build import build_results
            from .reports.answers import answer_blocks
            from .reports.evaluation import render_report

            results = build_results(
                folder, evaluation, failures, resumed=journal.resumed, windows=journal.windows
            )
            atomic_write_json(folder / RESULTS, results.model_dump(mode="json"))
            answers = answer_blocks(results, folder, evaluation.tokenizer, evaluation.benchmark.questions)
            atomic_write(folder / "report.html", render_report(results, answers))
            written = {name: log for name, log in (logs or {}).items() if log.is_file()}
            for name, log in written.items():
                atomic_write(folder / "servers" / f"{name}.log", log.read_bytes())
        journal.remove()
        for log in written.values():
            log.unlink()
    return results
