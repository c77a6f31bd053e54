"""Build ``results.json`` from an evaluation's answers and side files."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..core.progress import ProgressBar
from .benchmarks import asked_sha256
from .identity import compare_outputs
from .results.answers import MethodRows, read_method
from .results.schema import BenchmarkFacts, EvaluatedTarget, FailureRow, MethodResults, Results, Settings
from .results.settings import run_files
from .results.summary import retokenised_counts, summarise_runs
from .servers.load import describe_load

if TYPE_CHECKING:
    from .evaluation import Evaluation


def build_results(
    folder: Path,
    evaluation: Evaluation,
    failures: Sequence[FailureRow],
    *,
    resumed: int = 0,
    windows: Sequence[Mapping[str, Any]] = (),
) -> Results:
    """Build ``results.json`` from ``answers/`` and ``details/`` of a folder.

    Raises:
        DataError: a row cannot be read.
    """
    settings, provenance, benchmark = evaluation.settings, evaluation.provenance, evaluation.benchmark
    files = {kind: run_files(kind, evaluation.names, len(settings.runs)) for kind in ("answers", "details")}
    rows = {
        name: read_method(folder, files["answers"][name], files["details"][name]) for name in evaluation.names
    }
    with ProgressBar("compute intervals"):
        methods = _methods(evaluation, files, rows)
    served, methods = describe_load(folder, evaluation, methods, windows)
    return Results(
        vocabforge=__version__,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        target=EvaluatedTarget(
            name=", ".join(dict.fromkeys(server.model for server in served.get("servers", ())))
            or provenance.target,
            fingerprint=provenance.fingerprint,
            tokenizer=provenance.tokenizer,
            dtype=str(provenance.environment.get("dtype", "unknown")),
        ),
        benchmark=BenchmarkFacts(
            name=benchmark.name,
            file=benchmark.file,
            format=benchmark.format,
            sha256=benchmark.sha256,
            published=benchmark.published,
            asked=asked_sha256(benchmark.questions),
            questions=len(benchmark.questions),
            of=benchmark.of or len(benchmark.questions),
        ),
        answered=len(rows[evaluation.names[0]][0].answers),
        resumed=resumed,
        settings=Settings.model_validate(settings.to_dict()),
        parents=dict(provenance.parents),
        run_facts=_run_facts(evaluation),
        environment=dict(provenance.environment),
        command=shlex.join(provenance.command),
        methods=methods,
        failures=list(failures),
        baseline=evaluation.baseline,
        **served,
    )


def _methods(
    evaluation: Evaluation,
    files: Mapping[str, Mapping[str, list[str]]],
    rows: Mapping[str, Sequence[MethodRows]],
) -> list[MethodResults]:
    baseline = rows[evaluation.names[0]]
    tokenizer = evaluation.tokenizer

    def count(text: str) -> float:
        return float("nan") if tokenizer is None else len(tokenizer.encode(text, add_special=True))

    recounted = [retokenised_counts(run.answers, count) for run in baseline]
    entries = []
    for method in evaluation.methods:
        summary = summarise_runs(rows[method.name], baseline, recounted, compared=evaluation.baseline)
        # Sampled outputs may differ.
        compared = evaluation.settings.temperature == 0 and evaluation.baseline
        outputs = compare_outputs(evaluation, baseline, rows[method.name]) if compared else None
        entries.append(
            MethodResults(
                name=method.name,
                description=method.description,
                head=method.head,
                vocabulary=method.vocabulary,
                verifier=method.verifier,
                lossless=method.lossless,
                answers=files["answers"][method.name],
                details=files["details"][method.name],
                summary=summary.model_copy(update={"outputs": outputs}),
            )
        )
    return entries


def _run_facts(evaluation: Evaluation) -> dict[str, str]:
    benchmark, settings, provenance = evaluation.benchmark, evaluation.settings, evaluation.provenance
    facts = {
        "benchmark": f"{benchmark.name} ({benchmark.file})",
        "questions": str(len(benchmark.questions)),
        "prompt format": settings.prompt_format,
        **{
            name.replace("_", " "): str(value)
            for name, value in settings.sampling.chosen().items()
            if name != "seed"
        },
        "warm-up runs": str(settings.warmup),
        "runs": f"{len(settings.runs)} (seeds {', '.join(map(str, settings.seeds))}; repeats {settings.repeats})",
        "new tokens a turn": f"at most {settings.max_new_tokens}",
    }
    if settings.system:
        facts["system message"] = settings.system
    return facts | {name: str(value) for name, value in provenance.facts.items()}
