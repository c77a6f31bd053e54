"""``vocabforge eval --server`` and ``--start``: the evaluation with answers from servers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.artifact import check_output
from ...core.config import ResultOptions
from ...core.errors import UsageError
from ...core.provenance import hide_secrets
from ...corpus.regenerate.server import api_key, base_url
from ...decode.build.methods import Method
from ...evaluate.benchmarks import Benchmark
from ...evaluate.evaluation import Evaluation, Provenance, evaluate_methods
from ...evaluate.servers.asking import ServerAsking, served_format
from ...evaluate.servers.generator import ServerGenerator
from ...evaluate.servers.process import split_command, started
from .results import print_results

if TYPE_CHECKING:
    from ...corpus.tokenizer.tokenizer import TextTokenizer
    from .decoding_options import SamplingOptions
    from .eval import OutcomeOptions, RunOptions, ServerOptions

PLAIN = "plain"
_LABEL = re.compile(r"([A-Za-z][\w.+-]*)=(.+)", re.DOTALL)


def evaluate_servers(
    target: Path | None,
    servers: ServerOptions,
    benchmark: Benchmark,
    sampling: SamplingOptions,
    runs: RunOptions,
    outcome: OutcomeOptions,
    ending: ResultOptions,
) -> None:
    """Ask every server every question and write the evaluation.

    Args:
        target: the served model; its tokenizer counts tokens for the re-tokenised speed-up.
    """
    check_output(outcome.output, overwrite=ending.overwrite)
    form = served_format(runs.prompt_format, runs.system)
    settings = runs.settings(benchmark, form, sampling, servers.concurrency)
    key = api_key(servers.api_key_env)
    logs: dict[str, Path] = {}
    sources = _sources(servers, outcome.output, key, logs)
    methods = [
        Method(
            name,
            ServerGenerator(
                name,
                running,
                chat=settings.prompt_format == "chat",
                model=servers.model,
                key=key,
                timeout=servers.timeout,
            ),
            description,
        )
        for name, (description, running) in sources.items()
    ]
    tokenizer, fingerprint = _tokenizer(target, runs.tokenizer)
    provenance = Provenance(
        target=servers.model or (target.name if target is not None else "served model"),
        environment={"device": "a server", "dtype": "as served"},
        fingerprint=fingerprint,
        parents={} if fingerprint is None else {"target": fingerprint},
        facts={f"server of {name}": description for name, (description, _) in sources.items()},
    )
    evaluation = Evaluation(
        benchmark, methods, tokenizer, settings, provenance, baseline=PLAIN in sources, asking=ServerAsking
    )
    results = evaluate_methods(
        outcome.output, evaluation, overwrite=ending.overwrite, fresh=outcome.fresh, logs=logs
    )
    print_results(results, outcome.output, as_json=ending.as_json)


def _sources(
    servers: ServerOptions, output: Path, key: str | None, logs: dict[str, Path]
) -> dict[str, tuple[str, Callable[[], AbstractContextManager[str]]]]:
    """Return label -> (description, context that yields the address), the plain server first.

    Log files of servers to start are added to ``logs``.
    """
    by_label: dict[str, tuple[str, Any]] = {}

    def add(label: str, description: str, running: Any) -> None:
        if label in by_label:
            raise UsageError(
                "two servers have the same label",
                got=label,
                source="--server, --start",
                remedy="give each its own label: --server LABEL=URL",
            )
        by_label[label] = description, running

    for text in servers.server:
        label, url = _labelled(text)
        address = base_url(url)
        add(label, address, partial(contextlib.nullcontext, address))
    for text in servers.start:
        label, command = _labelled(text)
        split_command(command)
        log = logs[label] = output.with_name(f"{output.name}.{label}.log")
        running = partial(started, label, command, log, key=key, health_s=servers.start_timeout)
        add(label, hide_secrets(command), running)
    return dict(sorted(by_label.items(), key=lambda entry: entry[0] != PLAIN))


def _labelled(text: str) -> tuple[str, str]:
    """Split ``LABEL=REST``; the default label is ``server``."""
    label = _LABEL.fullmatch(text)
    return (label[1], label[2]) if label is not None else ("server", text)


def _tokenizer(target: Path | None, tokenizer: Path | None) -> tuple[TextTokenizer | None, str | None]:
    from ...corpus.tokenizer.tokenizer import load_tokenizer
    from ...models.target.fingerprint import target_fingerprint

    place = tokenizer or target
    return (
        None if place is None else load_tokenizer(place),
        None if target is None else target_fingerprint(target),
    )
