"""A whole evaluation as one artefact: answers, details, results.json and report.html."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.artifact import write_artifact
from ..core.files import atomic_write, atomic_write_json
from .answers import read_answers, read_details
from .benchmarks import Benchmark
from .names import file_names
from .report import render_report
from .runner import Failure, RunSettings, run_methods
from .summary import MethodRows, retokenised_counts, summarise

if TYPE_CHECKING:
    from ..corpus.tokenizer import TextTokenizer
    from ..decode.build import Method

ARTIFACT_KIND = "evaluation"
RESULTS_VERSION = 1


@dataclass(frozen=True)
class Provenance:
    """What was measured and on what, recorded beside the figures.

    Attributes:
        target: name of the target.
        environment: ``describe_environment``'s facts.
        parents: hashes of target, drafters and vocabularies by role.
        facts: further settings of the run for the record (tree sizes, paths).
        command: the command line, as a list of words.
    """

    target: str
    environment: Mapping[str, Any]
    parents: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    command: Sequence[str] = field(default_factory=lambda: ("vocabforge", *sys.argv[1:]))


def evaluate_methods(
    output: Path,
    benchmark: Benchmark,
    methods: Sequence[Method],
    tokenizer: TextTokenizer,
    settings: RunSettings,
    provenance: Provenance,
    *,
    overwrite: bool = False,
    synchronise: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run every method over the benchmark and write the evaluation artefact.

    Args:
        output: folder to make: ``answers/``, ``details/``, ``results.json``, ``report.html``.
        methods: plain decoding first.
        synchronise: waits for the device.

    Returns:
        The content of ``results.json``.

    Raises:
        UsageError: ``output`` exists, or two methods share a name.
        DataError: no question could be answered.
    """
    meta = {
        "benchmark": benchmark.name,
        "benchmark_sha256": benchmark.sha256,
        "methods": [method.name for method in methods],
        "settings": settings.to_dict(),
    }
    with write_artifact(
        output, ARTIFACT_KIND, meta, parents=provenance.parents, config=provenance.facts, overwrite=overwrite
    ) as folder:
        failures = run_methods(
            benchmark.questions,
            methods,
            tokenizer,
            settings,
            folder,
            model_ids={method.name: _model_id(method.name, provenance, settings) for method in methods},
            synchronise=synchronise,
        )
        results = build_results(folder, benchmark, methods, tokenizer, settings, provenance, failures)
        atomic_write_json(folder / "results.json", results)
        atomic_write(folder / "report.html", render_report(results))
    return results


def _model_id(method: str, provenance: Provenance, settings: RunSettings) -> str:
    dtype = provenance.environment.get("dtype", "unknown")
    return f"{provenance.target}-{method}-{dtype}-temp-{settings.temperature}"


def build_results(
    folder: Path,
    benchmark: Benchmark,
    methods: Sequence[Method],
    tokenizer: TextTokenizer,
    settings: RunSettings,
    provenance: Provenance,
    failures: Sequence[Failure],
) -> dict[str, Any]:
    """``results.json`` from the files that the run wrote; every figure is made from rows read back."""
    files = file_names([method.name for method in methods])
    rows = {
        name: MethodRows(read_answers(folder / "answers" / file), read_details(folder / "details" / file))
        for name, file in files.items()
    }
    baseline = rows[methods[0].name]
    recounted = retokenised_counts(
        baseline.answers, lambda text: len(tokenizer.encode(text, add_special=True))
    )
    greedy = settings.temperature == 0
    entries: list[dict[str, Any]] = [
        {
            "name": method.name,
            "description": method.description,
            "answers": f"answers/{files[method.name]}",
            "details": f"details/{files[method.name]}",
            "summary": summarise(rows[method.name], baseline, recounted, compare=greedy),
        }
        for method in methods
    ]
    parts = list(dict.fromkeys(part for entry in entries for part in entry["summary"]["time_s"]))
    return {
        "schema_version": RESULTS_VERSION,
        "created": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "target": {"name": provenance.target},
        "benchmark": {
            "name": benchmark.name,
            "file": benchmark.file,
            "sha256": benchmark.sha256,
            "questions": len(benchmark.questions),
        },
        "answered": len(baseline.answers),
        "settings": settings.to_dict(),
        "parents": dict(provenance.parents),
        "run_facts": _run_facts(benchmark, settings, provenance),
        "environment": dict(provenance.environment),
        "command": shlex.join(provenance.command),
        "time_parts": parts,
        "methods": entries,
        "failures": [asdict(failure) for failure in failures],
    }


def _run_facts(benchmark: Benchmark, settings: RunSettings, provenance: Provenance) -> dict[str, str]:
    """Settings and hashes as texts for the report's list."""
    facts = {
        "benchmark": f"{benchmark.name} ({benchmark.file}, sha256 {benchmark.sha256[:16]})",
        "questions": str(len(benchmark.questions)),
        "prompt format": settings.prompt_format,
        **{name.replace("_", " "): str(value) for name, value in settings.sampling.chosen().items()},
        "warm-up runs": str(settings.warmup),
        "new tokens a turn": f"at most {settings.max_new_tokens}",
    }
    facts |= {name: str(value) for name, value in provenance.facts.items()}
    facts |= {f"{role} hash": digest[:16] for role, digest in provenance.parents.items()}
    return facts
