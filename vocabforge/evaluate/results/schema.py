"""``results.json``: every figure of an evaluation, with a schema and a version (docs/formats.md has the keys)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ...core.records import read_versioned

SCHEMA_VERSION = 3
_OLDER = (2,)  # had no verifiers: all was lossless
RESULTS = "results.json"
ARTIFACT_KIND = "evaluation"

Judgement = Literal["near-tied", "fault", "not judged"]


class Strict(BaseModel):
    """Nothing unknown, nothing changed later, no NaN."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, json_schema_serialization_defaults_required=True
    )


class Figure(Strict):
    """A figure with its standard deviation over runs and its 95% interval over questions.

    Attributes:
        value: None if there is nothing to divide by.
        sd: ddof 1; None with one run.
        low, high: bootstrap; None with fewer than two questions.
    """

    value: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None


class GroupFigures(Strict):
    """One method over one group of questions, all runs; ``new_tokens`` and ``wall_time_s`` are sums.

    Attributes:
        accepted_length: tokens per verification, pooled over all steps of all runs, the target's own included.
        tokens_per_s: mean over questions of sum(new_tokens) / sum(wall_time), then over runs.
        speedup: ratio to the baseline's, its recorded ``new_tokens`` counted.
        speedup_retokenised: the same with the baseline's text tokenised again, as the upstream scorer counts it.
        seconds_per_step: mean over questions of sum(wall_time) / sum(decoding_steps), as FR-Spec's scorer prints.
        forwards_per_token: passes of the target over new tokens.
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
    """One method in one run, over all questions, by the public scorer's arithmetic."""

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
    """Acceptance at one draft depth (1 = the first drafted token), all runs.

    Attributes:
        offered, accepted: verification steps that offered and that accepted a token of this depth; what was offered
            is None where a server does not tell.
        reached, conditional: share of all steps that accepted one; of those that had accepted its parent.
    """

    depth: int
    offered: int | None
    accepted: int
    reached: float | None
    conditional: float | None


class DivergenceRow(Strict):
    """The first token at which an output differs from plain decoding, and why it may.

    Attributes:
        turn, position: from 0. The position counts tokens, or characters where a server does not tell its tokens.
        expected, got: token ids of plain decoding and of the method; None: its output had ended.
        judgement: ``near-tied``: both tokens are as near to the target's largest logit as its own rounding may move
            logits; ``fault``: one is not, or an output ended or went on when it must not; ``not judged``: the target
            was not asked (see ``reason``).
        gap, noise: difference of the two logits; how much rounding moved logits at this position.
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
    noise: float | None = None
    expected_logit: float | None = None
    got_logit: float | None = None
    reason: str = ""
    unit: Literal["token", "character"] = "token"


class Outputs(Strict):
    """Outputs (questions times runs) compared with plain decoding by token id; ``divergences`` has all that differ.

    Of the identical ones, ``cut`` were compared only up to where one output met the end of the cache.
    """

    compared: int
    identical: int
    cut: int
    near_tied: int
    faults: int
    not_judged: int
    divergences: list[DivergenceRow]


class Quality(Strict):
    """How many answers of all runs are right.

    Attributes:
        strict: share that is right in the benchmark's own form (GSM8K's ``#### n``); None without one.
        same_as_baseline: answers whose verdict is that of plain decoding in the same run.
        files: of the verdicts, one a run.
    """

    scorer: Literal["gsm8k", "human-eval"]
    attempted: int
    passed: int
    rate: Figure
    strict: float | None = None
    same_as_baseline: int | None = None
    files: list[str]
    facts: dict[str, str]


class VocabularyFacts(Strict):
    """What a draft head scores: ``size`` tokens in a draft step ``of`` the target's LM head's rows.

    ``kind``: full, static, scheduled, hybrid, ranker, router, low-rank, ...
    """

    kind: str
    size: int
    of: int


class Summary(Strict):
    """All figures of one method; ``time_s`` has the seconds of all runs by part, which sum to the wall time."""

    overall: GroupFigures
    tasks: dict[str, GroupFigures]
    categories: dict[str, GroupFigures]
    runs: list[RunFigures]
    accept_length_histogram: dict[str, int]
    depths: list[DepthFigures]
    time_s: dict[str, float]
    finish: dict[str, int]
    counts: dict[str, int | float | None]
    outputs: Outputs | None = None
    quality: Quality | None = None


class MethodResults(Strict):
    """One way of decoding.

    Attributes:
        verifier: asked for by name; None: chosen by the drafts, and lossless.
        lossless: whether its outputs have the target's distribution.
        answers, details: its files, one a run, relative to the folder.
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
    """A question that one method could not answer (``turn`` from 0); it is left out of every method's figures."""

    question_id: int
    category: str
    method: str
    run: int
    turn: int
    kind: str
    reason: str


class EvaluatedTarget(Strict):
    """The model; ``fingerprint`` is the hash of its weights' files, ``tokenizer`` that of tokenizer and template."""

    name: str
    fingerprint: str | None
    tokenizer: str | None
    dtype: str


class BenchmarkFacts(Strict):
    """What was asked: ``questions`` of the file's ``of``; ``published``: whether the file is the published one.

    ``asked`` is the hash of the questions asked, in order (ids, system messages and turns).
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
    """``RunSettings`` as values."""

    max_new_tokens: int
    sampling: dict[str, float]
    warmup: int
    prompt_format: Literal["chat", "raw"]
    system: str | None
    seeds: list[int]
    repeats: int
    concurrency: list[int] = [1]


class Quantiles(Strict):
    """Median and 95th percentile of seconds; None without a value."""

    median: float | None
    p95: float | None


class LoadFigures(Strict):
    """One server with a number of questions under way at once, all runs.

    Attributes:
        turns, new_tokens: answered in ``seconds``, the time in which at least one request was under way.
        tokens_per_s: of all requests together. speedup: over the plain server's under the same load.
        first_token_s: from sending a request to its first token; token_s: between tokens after it, by turn.
        accepted_length: tokens per verification, by the server's own counters; ``verifications`` of them.
        answers, details: its files, one a run, relative to the folder.
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
    answers: list[str]
    details: list[str]


class ServerFacts(Strict):
    """What a server tells of itself; ``kind`` is the ``owned_by`` of its models (vllm, sglang, llamacpp, ...)."""

    kind: str
    version: str | None
    model: str
    max_model_len: int | None


class EvaluatedServer(ServerFacts):
    """A server that was asked as one of the methods."""

    method: str


class Results(Strict):
    """The whole file; ``methods`` has plain decoding first.

    Attributes:
        created: UTC, ISO 8601.
        answered: questions that every method answered in every run.
        parents: hashes of what was measured, by role.
        baseline: whether the first method is plain decoding; False for a server that was compared with nothing.
        servers, load: of an evaluation of servers; else empty.
        warnings: what a reader of the figures must know.
    """

    schema_version: Literal[2, 3] = 3
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
        """The methods beside plain decoding."""
        return self.methods[1:] if self.baseline else self.methods


def read_results(path: Path) -> Results:
    """Read ``results.json`` from its path or from an evaluation's folder.

    Raises:
        DataError: missing file, another version, or a value that the schema does not allow.
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
