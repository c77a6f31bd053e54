"""Results of an evaluation as tests need them: made up, but such that the figures fit each other."""

from __future__ import annotations

import itertools

from vocabforge.decode.spec import DraftVocabulary
from vocabforge.evaluate.benchmarks import MT_BENCH
from vocabforge.evaluate.results.schema import (
    BenchmarkFacts,
    DepthFigures,
    DivergenceRow,
    EvaluatedTarget,
    FailureRow,
    Figure,
    GroupFigures,
    MethodResults,
    Outputs,
    Results,
    Settings,
    Summary,
)
from vocabforge.evaluate.results.settings import run_files

CATEGORIES = dict.fromkeys(MT_BENCH, 10) | dict.fromkeys(
    ("translation", "summarization", "qa", "math_reasoning", "rag"), 80
)
OF = 128_256
# name, head, kind and size of its draft vocabulary, accepted length, speed-up
METHODS = (
    ("eagle3", "full", "full", OF, 3.94, 1.61),
    ("eagle3+freq-32k", "static", "static", 32_768, 3.86, 1.84),
    ("eagle3+router", "router", "router", 4_096, 3.81, 1.92),
    ("eagle3+scheduled", "static", "scheduled", 24_576, 3.79, 1.83),
    ("eagle3+low-rank", "low-rank", "low-rank", 8_192, 3.62, 1.71),
    ("eagle3+ranker", "ranker", "ranker", 1_024, 3.55, 1.77),
    ("eagle3+freq-16k", "static", "static", 16_384, 3.70, 1.86),
    ("eagle3+freq-8k", "static", "static", 8_192, 3.41, 1.74),
    ("draft model", None, "full", OF, 3.11, 1.12),
    ("early-exit", None, "full", OF, 1.92, 1.05),
)
ENVIRONMENT = {
    "machine": "x86_64", "system": "Linux 6.8", "processor": "An 8-core processor", "cpu_count": 8, "threads": 8,
    "python": "3.12.3", "torch": "2.13.0", "dtype": "float16", "device": "cuda", "gpu": "A card with 24 GB",
}  # fmt: skip
PARTS = ("prefill", "head", "layers", "draft", "verify", "other")
_SHARES = {
    "full": (0.06, 0.24, 0.10, 0.05, 0.50, 0.05),
    "plain": (0.04, 0.0, 0.0, 0.0, 0.91, 0.05),
    "reduced": (0.07, 0.07, 0.12, 0.06, 0.62, 0.06),
}
STEPS_PER_QUESTION, TOKENS_PER_S = 60, 41.5


def sample_results(
    methods: int = 3,
    runs: int = 2,
    *,
    categories: dict[str, int] | None = None,
    temperature: float = 0.0,
    near_tied: int = 2,
    faults: int = 1,
    failures: int = 1,
) -> Results:
    """Results that the schema allows.

    Args:
        methods: ways of decoding, plain decoding the first; at most 11.
        runs: repeats (greedy) or seeds (sampled).
        categories: questions by category; None: those of Spec-Bench.
        near_tied, faults: divergences of the last method; none if outputs are sampled.
        failures: questions left out.
    """
    categories = dict(CATEGORIES if categories is None else categories)
    questions = sum(categories.values())
    rows: list[MethodResults] = []
    for index, (name, head, kind, size, length, speedup) in enumerate(
        [("plain", None, None, 0, 1.0, 1.0), *METHODS][:methods]
    ):
        bad = (near_tied, faults) if index and index == methods - 1 else (0, 0)
        summary = _summary(categories, runs, length, speedup, "plain" if kind is None else kind)
        update = {"outputs": _outputs(questions * runs, *bad) if temperature == 0 else None}
        rows.append(
            MethodResults(
                name=name,
                description=f"{name}, a tree of depth 5 with 60 nodes" if index else "plain decoding",
                head=head,
                vocabulary=None if kind is None else DraftVocabulary(kind=kind, size=size, of=OF),
                answers=_files("answers", name, runs),
                details=_files("details", name, runs),
                summary=summary.model_copy(update=update),
            )
        )
    seeds = [0] if temperature == 0 else list(range(runs))
    return Results(
        vocabforge="0.1.0",
        created="2026-11-21T20:15:00Z",
        target=EvaluatedTarget(
            name="llama-3-8b-instruct", fingerprint="ab" * 32, tokenizer="cd" * 32, dtype="float16"
        ),
        benchmark=BenchmarkFacts(
            name="spec-bench",
            file="question.jsonl",
            format="spec-bench",
            sha256="ef" * 32,
            published=True,
            asked="12" * 32,
            questions=questions + failures,
            of=questions + failures,
        ),
        answered=questions,
        resumed=0,
        settings=Settings(
            max_new_tokens=1024,
            sampling={"temperature": temperature, "top_p": 1.0},
            warmup=3,
            prompt_format="chat",
            system=None,
            seeds=seeds,
            repeats=runs // len(seeds),
        ),
        parents={"target": "ab" * 32, "drafter eagle3": "34" * 32},
        run_facts={"prompt format": "chat", "tree": "depth 5, 60 nodes, 10 a step"},
        environment=dict(ENVIRONMENT),
        command="vocabforge eval --target llama-3-8b-instruct --benchmark spec-bench --drafter eagle3 "
        "--vocab freq-32k --repeats 2 --output out/eval",
        methods=rows,
        failures=[
            FailureRow(
                question_id=500 + number,
                category="rag",
                method=rows[-1].name,
                run=1,
                turn=0,
                kind="DataError",
                reason="the prompt does not fit the cache: got 2311 tokens, expected at most 2048",
            )
            for number in range(failures)
        ],
    )


def _files(kind: str, name: str, runs: int) -> list[str]:
    return run_files(kind, [name], runs)[name]


def _figure(value: float, runs: int, noise: float, questions: int = 480) -> Figure:
    half = value * 0.35 / questions**0.5
    ends = {"low": value - half, "high": value + 1.05 * half} if questions > 1 else {}
    return Figure(value=value, sd=value * noise if runs > 1 else None, **ends)


def _group(questions: int, runs: int, length: float, speedup: float) -> GroupFigures:
    plain = length == 1.0
    tokens = round(questions * runs * STEPS_PER_QUESTION * 3.5)
    speed = TOKENS_PER_S * speedup
    still = 0.0  # neither counts nor forwards move between greedy runs
    one = Figure(value=1.0, sd=0.0 if runs > 1 else None, low=1.0, high=1.0)
    return GroupFigures(
        questions=questions,
        new_tokens=tokens,
        wall_time_s=tokens / speed,
        accepted_length=one if plain else _figure(length, runs, still, questions),
        tokens_per_s=_figure(speed, runs, 0.02, questions),
        speedup=one if plain else _figure(speedup, runs, 0.015, questions),
        speedup_retokenised=_figure(speedup * 1.01, runs, 0.015, questions),
        forwards_per_token=_figure(1.01 / length, runs, still, questions),
    )


def _summary(categories: dict[str, int], runs: int, length: float, speedup: float, kind: str) -> Summary:
    groups = {
        name: _group(count, runs, length * ease, speedup * ease)
        for name, count, ease in zip(categories, categories.values(), itertools.cycle((1.0, 0.9, 1.1)))
    }
    chat = {name: count for name, count in categories.items() if name in MT_BENCH}
    tasks = {"mt_bench": _group(sum(chat.values()), runs, length, speedup)} if chat else {}
    tasks |= {name: group for name, group in groups.items() if name not in MT_BENCH}
    overall = _group(sum(categories.values()), runs, length, speedup)
    steps = round(overall.new_tokens / length)
    keep = 0.0 if length == 1.0 else 1.0 - 1.0 / length
    reached = [keep**depth for depth in range(1, 6)] if keep else []
    split = _SHARES.get(kind, _SHARES["reduced"])
    return Summary(
        overall=overall,
        tasks=tasks,
        categories=groups,
        depths=[
            DepthFigures(depth=depth, offered=steps, accepted=round(steps * share), reached=share)
            for depth, share in enumerate(reached, start=1)
        ],
        time_s={part: overall.wall_time_s * share for part, share in zip(PARTS, split) if share},
        counts={},
    )


def _outputs(compared: int, near_tied: int, faults: int) -> Outputs:
    rows = [_divergence(number, number >= near_tied) for number in range(near_tied + faults)]
    same = compared - len(rows)
    counts = {"near_tied": near_tied, "faults": faults, "not_judged": 0}
    return Outputs(compared=compared, identical=same, cut=0, **counts, divergences=rows)


def _divergence(number: int, fault: bool) -> DivergenceRow:
    return DivergenceRow(
        run=1,
        question_id=101 + number,
        turn=number % 2,
        position=17 + 5 * number,
        expected=1_820 + number,
        got=3_977,
        expected_text=" the",
        got_text=" a <b>&",
        judgement="fault" if fault else "near-tied",
        gap=2.4 if fault else 0.003,
        tolerance=0.016,
        expected_logit=21.43,
        got_logit=19.03 if fault else 21.427,
        reason="rounding cannot explain it" if fault else "both tokens are within 0.016 of the largest logit",
    )
