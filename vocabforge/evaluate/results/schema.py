"""``results.json``: a versioned schema of all figures of an evaluation (docs/formats.md lists the keys)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ...core.records import read_versioned
from ...decode.spec import DraftVocabulary

SCHEMA_VERSION = 5
_OLDER = (2, 3, 4)  # 2 has no verifiers: all methods were lossless
RESULTS = "results.json"
ARTIFACT_KIND = "evaluation"

Judgement = Literal["near-tied", "fault", "not judged"]


class Strict(BaseModel):
    """Base model: frozen, without unknown fields or NaN."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, json_schema_serialization_defaults_required=True
    )


def former() -> Any:
    """Return the field of a key that earlier versions wrote: read, ignored, and not written."""
    return Field(default=None, exclude=True)


class Figure(Strict):
    """A figure with its standard deviation over runs and its 95% interval over questions."""

    value: float | None = None  # None if undefined
    sd: float | None = None  # with ddof 1; None for a single run
    low: float | None = None  # bootstrap interval; None with fewer than two questions
    high: float | None = None


class GroupFigures(Strict):
    """A method over a group of questions, all runs; ``new_tokens`` and ``wall_time_s`` are sums."""

    questions: int
    new_tokens: int
    wall_time_s: float
    # Tokens per verification including the target's own, pooled over all steps of all runs.
    accepted_length: Figure
    tokens_per_s: Figure  # mean over questions of sum(new_tokens) / sum(wall_time), then over runs
    speedup: Figure  # ratio to the baseline's, using its recorded ``new_tokens``
    # The same with the baseline's text tokenised again, as in the upstream scorer.
    speedup_retokenised: Figure
    forwards_per_token: Figure  # target passes divided by new tokens
    seconds_per_step: Any = former()


class DepthFigures(Strict):
    """Acceptance at a draft depth (1 = the first drafted token), all runs."""

    depth: int
    # Verifications that included a token of this depth; None if a server does not report it.
    offered: int | None
    accepted: int  # verifications that accepted a token of this depth
    reached: float | None  # ``accepted`` as a share of all verifications
    conditional: Any = former()


class PositionFigures(Strict):
    """Acceptance while the text, prompt included, has ``start`` to ``stop`` - 1 tokens; all runs."""

    start: int
    stop: int | None  # None for the last range
    verifications: int  # that began there
    accepted_length: float


class DivergenceRow(Strict):
    """The first token at which an output differs from plain decoding, with a judgement."""

    run: int
    question_id: int
    turn: int  # from 0
    position: int  # in tokens from 0; in characters if a server does not return tokens
    expected: int | None  # token ids of plain decoding and of the method; None: the output had ended
    got: int | None
    expected_text: str | None = None
    got_text: str | None = None
    # ``near-tied``: both tokens are within ``tolerance`` of the target's largest logit; ``fault``: one is not, or
    # only one output ends; ``not judged``: the target was not asked (see ``reason``).
    judgement: Judgement = "not judged"
    gap: float | None = None  # difference of the two logits
    tolerance: float | None = None  # difference that the rounding of the target's dtype explains
    noise: Any = former()
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


class Summary(Strict):
    """All figures of a method; ``time_s`` has the seconds of all runs by part, which sum to the wall time."""

    overall: GroupFigures
    tasks: dict[str, GroupFigures]
    categories: dict[str, GroupFigures]
    depths: list[DepthFigures]
    positions: list[PositionFigures] = []
    time_s: dict[str, float]
    counts: dict[str, int | float | None]
    outputs: Outputs | None = None
    quality: Any = former()
    runs: Any = former()
    accept_length_histogram: Any = former()
    finish: Any = former()


class MethodResults(Strict):
    """A decoding method."""

    name: str
    description: str
    head: str | None
    vocabulary: DraftVocabulary | None
    verifier: str | None = None  # as requested; None: the lossless verifier that fits the drafts
    lossless: bool = True  # whether outputs have the target's distribution
    answers: list[str]  # files of the method, one per run, relative to the folder
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
    """A method, or a server, at a number of requests at once, all runs."""

    method: str
    concurrency: int
    turns: int  # totals of all answers, like the new tokens
    new_tokens: int
    seconds: float  # time during which at least one request was in progress
    tokens_per_s: float | None  # throughput of all requests together, with those that an interruption lost
    speedup: float | None  # ratio to plain decoding's throughput under the same load
    # Time from sending a request to its first token, without the wait for a free row of the decoder.
    first_token_s: Quantiles
    token_s: Quantiles  # time between later tokens, by turn
    verifications: int | None
    accepted_length: float | None  # tokens per verification, by a server's own counters
    # Questions whose tokens are those of plain decoding one by one, over all runs; None if sampled or unknown.
    identical: int | None = None
    answers: list[str]  # files of the method, one per run, relative to the folder
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
    """The whole file; ``methods`` starts with plain decoding."""

    schema_version: Literal[2, 3, 4, 5] = 5
    vocabforge: str
    created: str  # UTC, ISO 8601
    target: EvaluatedTarget
    benchmark: BenchmarkFacts
    answered: int  # number of questions that every method answered in every run
    resumed: int
    settings: Settings
    parents: dict[str, str]  # role -> hash of each input
    run_facts: dict[str, str]
    environment: dict[str, Any]
    command: str
    time_parts: Any = former()
    methods: list[MethodResults]
    failures: list[FailureRow]
    # Whether the first method is plain decoding; False for a server without a comparison.
    baseline: bool = True
    servers: list[EvaluatedServer] = []  # empty unless servers were evaluated
    load: list[LoadFigures] = []
    warnings: list[str] = []  # caveats for readers of the figures

    @property
    def compared(self) -> list[MethodResults]:
        """The methods other than plain decoding."""
        return self.methods[1:] if self.baseline else self.methods

    @property
    def runs(self) -> int:
        """Number of runs of each method."""
        return len(self.settings.seeds) * self.settings.repeats


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
