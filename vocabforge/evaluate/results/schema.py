"""``results.json``: a versioned schema of all figures of an evaluation (docs/formats.md lists the keys)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ...core.records import read_versioned

SCHEMA_VERSION = 4
_OLDER = (2, 3)  # 2 has no verifiers: all methods were lossless
RESULTS = "results.json"
ARTIFACT_KIND = "evaluation"

Judgement = Literal["near-tied", "fault", "not judged"]


class Strict(BaseModel):
    """Base model: frozen, without unknown fields or NaN."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, json_schema_serialization_defaults_required=True
    )


class Figure(Strict):
    """A figure with its standard deviation over runs and its 95% interval over questions.

    Attributes:
        value: None if undefined.
        sd: standard deviation with ddof 1; None for a single run.
        low, high: bootstrap interval; None with fewer than two questions.
    """

    value: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None


class GroupFigures(Strict):
    """A method over a group of questions, all runs; ``new_tokens`` and ``wall_time_s`` are sums.

    Attributes:
        accepted_length: tokens per verification including the target's own, pooled over all steps of all
            runs.
        tokens_per_s: mean over questions of sum(new_tokens) / sum(wall_time), then over runs.
        speedup: ratio to the baseline's, using its recorded ``new_tokens``.
        speedup_retokenised: the same with the baseline's text tokenised again, as in the upstream scorer.
        seconds_per_step: mean over questions of sum(wall_time) / sum(decoding_steps), as in FR-Spec's scorer.
        forwards_per_token: target passes divided by new tokens.
    """

    questions: int
    new_tokens: int
    wall_time_s: float
    accepted_length: Figure
    tokens_per_s: Figure
    speedup: Figure
    speedup_retokenised: Figure
    seconds_per_step: Figure
    forwards_per_token: Figure


class RunFigures(Strict):
    """A method in one run over all questions, computed as in the public scorer."""

    run: int
    seed: int
    repeat: int
    accepted_length: float | None
    tokens_per_s: float | None
    speedup: float | None
    speedup_retokenised: float | None
    forwards_per_token: float | None
    new_tokens: int
    wall_time_s: float


class DepthFigures(Strict):
    """Acceptance at a draft depth (1 = the first drafted token), all runs.

    Attributes:
        offered: verifications that included a token of this depth; None if a server does not report it.
        accepted: verifications that accepted a token of this depth.
        reached: ``accepted`` as a share of all verifications.
        conditional: ``accepted`` as a share of verifications that accepted the parent.
    """

    depth: int
    offered: int | None
    accepted: int
    reached: float | None
    conditional: float | None


class PositionFigures(Strict):
    """Acceptance where the text, prompt included, has ``start`` to ``stop`` - 1 tokens; all runs.

    Attributes:
        stop: None for the last range.
        verifications: verifications that began there.
    """

    start: int
    stop: int | None
    verifications: int
    accepted_length: float


class DivergenceRow(Strict):
    """The first token at which an output differs from plain decoding, with a judgement.

    Attributes:
        turn: turn, from 0.
        position: position in tokens from 0; in characters if a server does not return tokens.
        expected, got: token ids of plain decoding and of the method; None: the output had ended.
        judgement: ``near-tied``: both tokens are within ``tolerance`` of the target's largest logit; ``fault``:
            one is not, or only one output ends; ``not judged``: the target was not asked (see ``reason``).
        gap: difference of the two logits.
        tolerance: difference that the rounding of the target's dtype explains.
        noise: rounding as measured by earlier versions; ignored.
    """

    run: int
    question_id: int
    turn: int
    position: int
    expected: int | None
    got: int | None
    expected_text: str | None = None
    got_text: str | None = None
    judgement: Judgement = "not judged"
    gap: float | None = None
    tolerance: float | None = None
    noise: float | None = Field(default=None, exclude=True)
    expected_logit: float | None = None
    got_logit: float | None = None
    reason: str = ""
    unit: Literal["token", "character"] = "token"


class Outputs(Strict):
    """Outputs (questions times runs) compared with plain decoding by token id.

    ``divergences`` lists all differences.

    ``cut`` of the identical outputs were compared only up to the point where one filled the cache.
    """

    compared: int
    identical: int
    cut: int
    near_tied: int
    faults: int
    not_judged: int
    divergences: list[DivergenceRow]


class VocabularyFacts(Strict):
    """Draft vocabulary of a head: ``size`` tokens scored per draft step, ``of`` rows of the target's LM head.

    ``kind``: full, static, scheduled, context, ranker, router, low-rank, ...
    """

    kind: str
    size: int
    of: int


class Summary(Strict):
    """All figures of a method; ``time_s`` has the seconds of all runs by part, which sum to the wall time."""

    overall: GroupFigures
    tasks: dict[str, GroupFigures]
    categories: dict[str, GroupFigures]
    runs: list[RunFigures]
    accept_length_histogram: dict[str, int]
    depths: list[DepthFigures]
    positions: list[PositionFigures] = []
    time_s: dict[str, float]
    finish: dict[str, int]
    counts: dict[str, int | float | None]
    outputs: Outputs | None = None
    quality: Any = Field(default=None, exclude=True)  # scores of the answers in versions 2 and 3, ignored


class MethodResults(Strict):
    """A decoding method.

    Attributes:
        verifier: requested verifier; None: the lossless verifier that fits the drafts.
        lossless: whether outputs have the target's distribution.
        answers, details: files of the method, one per run, relative to the folder.
    """

    name: str
    description: str
    head: str | None
    vocabulary: VocabularyFacts | None
    verifier: str | None = None
    lossless: bool = True
    answers: list[str]
    details: list[str]
    summary: Summary


class FailureRow(Strict):
    """A question that a method could not answer (``turn`` from 0), excluded from every method's figures."""

    question_id: int
    category: str
    method: str
    run: int
    turn: int
    kind: str
    reason: str


class EvaluatedTarget(Strict):
    """The model; ``fingerprint`` hashes its weight files, ``tokenizer`` its tokenizer and chat template."""

    name: str
    fingerprint: str | None
    tokenizer: str | None
    dtype: str


class BenchmarkFacts(Strict):
    """The benchmark: ``questions`` of the file's ``of``; ``published``: whether it is the published file.

    ``asked`` is the hash of the questions in order (ids, system messages and turns).
    """

    name: str
    file: str
    format: str
    sha256: str
    published: bool | None
    asked: str
    questions: int
    of: int


class Settings(Strict):
    """``RunSettings`` as plain values."""

    max_new_tokens: int
    sampling: dict[str, float]
    warmup: int
    prompt_format: Literal["chat", "raw"]
    system: str | None
    seeds: list[int]
    repeats: int
    concurrency: list[int] = [1]


class Quantiles(Strict):
    """Median and 95th percentile of seconds; None if unknown."""

    median: float | None
    p95: float | None


class LoadFigures(Strict):
    """A method, or a server, at a number of requests at once, all runs.

    Attributes:
        turns, new_tokens: totals of all answers.
        seconds: time during which at least one request was in progress.
        tokens_per_s: throughput of all requests together, with those that an interruption lost.
        speedup: ratio to plain decoding's throughput under the same load.
        first_token_s: time from sending a request to its first token; without the wait for a free row of the decoder.
        token_s: time between later tokens, by turn.
        accepted_length: tokens per verification, by a server's own counters.
        verifications: number of verifications counted.
        identical: questions whose tokens are those of plain decoding one by one, over all runs; None if sampled or
            unknown.
        answers, details: files of the method, one per run, relative to the folder.
    """

    method: str
    concurrency: int
    turns: int
    new_tokens: int
    seconds: float
    tokens_per_s: float | None
    speedup: float | None
    first_token_s: Quantiles
    token_s: Quantiles
    verifications: int | None
    accepted_length: float | None
    identical: int | None = None
    answers: list[str]
    details: list[str]


class ServerFacts(Strict):
    """A server's description of itself; ``kind`` is the ``owned_by`` of its models (vllm, sglang, ...)."""

    kind: str
    version: str | None
    model: str
    max_model_len: int | None


class EvaluatedServer(ServerFacts):
    """A server that was evaluated as one of the methods."""

    method: str


class Results(Strict):
    """The whole file; ``methods`` starts with plain decoding.

    Attributes:
        created: UTC, ISO 8601.
        answered: number of questions that every method answered in every run.
        parents: role -> hash of each input.
        baseline: whether the first method is plain decoding; False for a server without a comparison.
        servers, load: for evaluations of servers; otherwise empty.
        warnings: caveats for readers of the figures.
    """

    schema_version: Literal[2, 3, 4] = 4
    vocabforge: str
    created: str
    target: EvaluatedTarget
    benchmark: BenchmarkFacts
    answered: int
    resumed: int
    settings: Settings
    parents: dict[str, str]
    run_facts: dict[str, str]
    environment: dict[str, Any]
    command: str
    time_parts: list[str]
    methods: list[MethodResults]
    failures: list[FailureRow]
    baseline: bool = True
    servers: list[EvaluatedServer] = []
    load: list[LoadFigures] = []
    warnings: list[str] = []

    @property
    def compared(self) -> list[MethodResults]:
        """The methods other than plain decoding."""
        return self.methods[1:] if self.baseline else self.methods


def read_results(path: Path) -> Results:
    """Read ``results.json`` from its path or from an evaluation's folder.

    Raises:
        DataError: the file is missing, has another version, or violates the schema.
    """
    file = path / RESULTS if path.is_dir() else path
    return read_versioned(
        file,
        Results,
        SCHEMA_VERSION,
        what="results file",
        remedy="evaluate again, or read it with the version that wrote it",
        older=_OLDER,
    )
