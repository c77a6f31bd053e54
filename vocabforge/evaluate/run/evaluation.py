"""A whole evaluation as one artefact: answers, side files, quality, results.json and report.html."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...core.artifact import check_output, write_artifact
from ...core.files import atomic_write, atomic_write_json
from ...core.provenance import command_line, git_revision
from ..benchmarks import Benchmark, asked_sha256
from ..identity.compare import compare_outputs, outputs_of
from ..identity.divergence import Verdicts, judge
from ..quality import score_answers
from ..reports.evaluation import render_report
from ..results.answers import MethodRows, read_method, write_rows
from ..results.dialects import DIALECTS
from ..results.schema import (
    ARTIFACT_KIND,
    RESULTS,
    BenchmarkFacts,
    FailureRow,
    MethodResults,
    Outputs,
    Quality,
    Results,
    Settings,
    Target,
    VocabularyFacts,
)
from ..results.summary import retokenised_counts, summarise_runs
from .journal import EvaluationJournal
from .request import Asking
from .runner import run_identity, run_methods
from .settings import RunSettings, run_files

if TYPE_CHECKING:
    from ...corpus.tokenizer.tokenizer import TextTokenizer
    from ...decode.build.methods import Method


@dataclass(frozen=True)
class Provenance:
    """What was measured and on what, recorded beside the figures.

    Attributes:
        target: name of the target.
        environment: ``describe_environment``'s facts.
        fingerprint: hash of the target's files. tokenizer: hash of its tokenizer.
        parents: hashes of target, drafters and vocabularies by role.
        facts: further settings of the run for the record (tree sizes, paths).
        command: the command line, as a list of words.
    """

    target: str
    environment: Mapping[str, Any]
    fingerprint: str | None = None
    tokenizer: str | None = None
    parents: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    command: Sequence[str] = field(default_factory=command_line)


@dataclass(frozen=True)
class OutputOptions:
    """What becomes of the run beside its figures.

    Attributes:
        overwrite: replace the artefact that is there.
        fresh: begin anew where an interrupted run could go on.
        allow_code: run the programs that a model wrote, in a sandbox (HumanEval).
        dialect: also write the answers as this row of ``DIALECTS`` does.
        synchronise: waits for the device; called before and after each timed call.
        between: called before each question of each method, outside of the clock.
    """

    overwrite: bool = False
    fresh: bool = False
    allow_code: bool = False
    dialect: str | None = None
    synchronise: Callable[[], None] = lambda: None
    between: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Evaluation:
    """What is run: questions, methods (plain decoding first), how, and what on."""

    benchmark: Benchmark
    methods: Sequence[Method]
    tokenizer: TextTokenizer
    settings: RunSettings
    provenance: Provenance

    @property
    def names(self) -> list[str]:
        """Of the methods, in order."""
        return [method.name for method in self.methods]

    def identity(self) -> dict[str, Any]:
        """What decides the figures beside what is run: an interrupted run goes on only where it is the same."""
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
        """``model_id`` of the answer rows by method."""
        dtype = self.provenance.environment.get("dtype", "unknown")
        tail = f"{dtype}-temp-{self.settings.temperature}"
        return {name: f"{self.provenance.target}-{name}-{tail}" for name in self.names}


def evaluate_methods(output: Path, evaluation: Evaluation, handling: OutputOptions | None = None) -> Results:
    """Run every method over the benchmark and write the evaluation artefact.

    An interrupted run leaves ``OUTPUT.partial``; the same call goes on from there.

    Args:
        output: folder to make: ``answers/``, ``details/``, ``results.json``, ``report.html`` and what else
            docs/formats.md names.

    Returns:
        The content of ``results.json``.

    Raises:
        UsageError: ``output`` exists, two methods share a name, or another run's remains are in the way.
        DataError: no question could be answered.
    """
    handling = handling or OutputOptions()
    check_output(output, overwrite=handling.overwrite)
    provenance, settings = evaluation.provenance, evaluation.settings
    meta = {
        "benchmark": evaluation.benchmark.name,
        "benchmark_sha256": evaluation.benchmark.sha256,
        "methods": evaluation.names,
        "settings": settings.to_dict(),
    }
    asking = Asking(evaluation.tokenizer, settings, handling.synchronise, handling.between)
    questions, methods, model_ids = evaluation.benchmark.questions, evaluation.methods, evaluation.model_ids()
    identity = run_identity(questions, methods, asking, model_ids) | evaluation.identity()
    partial = output.with_name(f"{output.name}.partial")
    with EvaluationJournal(partial, identity, fresh=handling.fresh) as journal:
        with write_artifact(
            output,
            ARTIFACT_KIND,
            meta,
            parents=provenance.parents,
            config=provenance.facts,
            overwrite=handling.overwrite,
        ) as folder:
            failures = run_methods(questions, methods, asking, folder, journal, model_ids)
            write_rows(folder / "failures.jsonl", [failure.model_dump() for failure in failures])
            results = build_results(
                folder, evaluation, failures, resumed=journal.resumed, allow_code=handling.allow_code
            )
            _write_for_others(folder, evaluation, handling.dialect)
            atomic_write_json(folder / RESULTS, results.model_dump(mode="json"))
            atomic_write(folder / "report.html", render_report(results))
        journal.remove()
    return results


def _write_for_others(folder: Path, evaluation: Evaluation, dialect: str | None) -> None:
    """The files in others' formats, made from the answers and the side files."""
    from ..results.dialects import write_hf_bench

    runs = len(evaluation.settings.runs)
    write_hf_bench(
        folder,
        evaluation.benchmark,
        evaluation.names,
        runs,
        target=evaluation.provenance.target,
        temperature=evaluation.settings.temperature,
    )
    if dialect is not None:
        DIALECTS[dialect](folder, evaluation.benchmark, evaluation.names, runs)


def build_results(
    folder: Path,
    evaluation: Evaluation,
    failures: Sequence[FailureRow],
    *,
    resumed: int = 0,
    allow_code: bool = False,
) -> Results:
    """The content of ``results.json``.

    Args:
        folder: with the run's ``answers/`` and ``details/``; gets the scorers' files of verdicts.
        evaluation: what was run.
        failures: questions that are left out.
        resumed: how often the run was interrupted and resumed.
        allow_code: run the programs that a model wrote, in a sandbox.

    Raises:
        DataError: rows that cannot be read, or a question that lacks what its scorer needs.
        VocabForgeError: code cannot be run safely here.
    """
    settings, provenance, benchmark = evaluation.settings, evaluation.provenance, evaluation.benchmark
    files = {kind: run_files(kind, evaluation.names, len(settings.runs)) for kind in ("answers", "details")}
    rows = {
        name: read_method(folder, files["answers"][name], files["details"][name]) for name in evaluation.names
    }
    quality = score_answers(
        benchmark,
        {name: [one.answers for one in runs] for name, runs in rows.items()},
        folder,
        allow_code=allow_code,
        prompt_format=settings.prompt_format,
    )
    methods = _methods(evaluation, files, rows, quality)
    return Results(
        vocabforge=__version__,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        target=Target(
            name=provenance.target,
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
        time_parts=list(dict.fromkeys(part for one in methods for part in one.summary.time_s)),
        methods=methods,
        failures=list(failures),
    )


def _methods(
    evaluation: Evaluation,
    files: Mapping[str, Mapping[str, list[str]]],
    rows: Mapping[str, Sequence[MethodRows]],
    quality: Mapping[str, Quality],
) -> list[MethodResults]:
    """Every method's files and figures, plain decoding first."""
    baseline = rows[evaluation.names[0]]
    encode = evaluation.tokenizer.encode
    recounted = [
        retokenised_counts(one.answers, lambda text: len(encode(text, add_special=True))) for one in baseline
    ]
    entries = []
    for method in evaluation.methods:
        summary = summarise_runs(rows[method.name], baseline, recounted, evaluation.settings.runs)
        found = {
            "outputs": _outputs(evaluation, baseline, rows[method.name]),
            "quality": quality.get(method.name),
        }
        entries.append(
            MethodResults(
                name=method.name,
                description=method.description,
                head=method.head,
                vocabulary=None
                if method.vocabulary is None
                else VocabularyFacts(**asdict(method.vocabulary)),
                verifier=method.verifier,
                lossless=method.lossless,
                answers=files["answers"][method.name],
                details=files["details"][method.name],
                summary=summary.model_copy(update=found),
            )
        )
    return entries


def _outputs(
    evaluation: Evaluation, baseline: Sequence[MethodRows], rows: Sequence[MethodRows]
) -> Outputs | None:
    """The method's outputs against plain decoding's; None where they are drawn, so that they may differ."""
    if evaluation.settings.temperature != 0:
        return None
    target = getattr(evaluation.methods[0].generator, "target", None)
    comparisons: list[Outputs] = []
    known: Verdicts = {}
    for run, plain, method in zip(evaluation.settings.runs, baseline, rows, strict=True):
        found = compare_outputs(plain.details, method.details, run.number)
        if target is not None and found.divergences:
            judged = judge(
                found.divergences,
                evaluation.benchmark.questions,
                plain,
                evaluation.tokenizer,
                evaluation.settings,
                target,
                known=known,
            )
            found = found.model_copy(update={"divergences": judged})
        comparisons.append(found)
    return outputs_of(comparisons)


def _run_facts(evaluation: Evaluation) -> dict[str, str]:
    """Settings and hashes as texts for the report's list."""
    benchmark, settings, provenance = evaluation.benchmark, evaluation.settings, evaluation.provenance
    facts = {
        "benchmark": f"{benchmark.name} ({benchmark.file}, sha256 {benchmark.sha256[:16]})",
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
    facts |= {name: str(value) for name, value in provenance.facts.items()}
    facts |= {f"{role} hash": digest[:16] for role, digest in provenance.parents.items()}
    return facts
