"""Compare the decoding speed of VocabForge with transformers' ``generate``, plain and assisted, on the same prompts.

    python recipes/bench/decoding.py target=FILE.gguf prompts=spec-bench \\
        methods.n-gram.proposer=n-gram methods.eagle3.drafter=smollm2-135m

Both sides decode greedily with the same number of new tokens, dtype and threads, and take turns. N-grams meet prompt
lookup, a draft model meets assisted generation; transformers has nothing like the other methods, and no drafts in
batches. Its side runs with the fastest of several settings. Warm-up and that search are not timed. ``rows=[1,4,16]``
measures each load: so many requests side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, cast

import torch
from command import run, seconds_of, speed_up, spread, spread_text, take_turns
from pydantic import Field

from vocabforge.core.config import Positive, apply_overrides, parse_config
from vocabforge.core.console import DataTable, say
from vocabforge.core.errors import UsageError
from vocabforge.corpus.tokenizer.prompt_format import resolve_format
from vocabforge.decode.build.methods import build_method
from vocabforge.decode.build.models import Models
from vocabforge.decode.build.recipe import PLAIN, DecodingRecipe
from vocabforge.decode.engine import Decoder
from vocabforge.decode.interface import PLAIN_PLAN, Plan
from vocabforge.decode.proposers.registry import FOREIGN
from vocabforge.decode.request import Generation, Request
from vocabforge.decode.spec import MethodSpec
from vocabforge.evaluate.benchmarks import load_benchmark
from vocabforge.evaluate.identity import first_difference
from vocabforge.evaluate.run.environment import describe_environment
from vocabforge.evaluate.run.prompts import PromptBuilder, system_of
from vocabforge.models.device import threads_set
from vocabforge.models.target.interface import next_logits
from vocabforge.models.target.load import DTYPES

Prompts = Sequence[Sequence[int]]
# Largest gap between the target's two best logits that rounding explains where two outputs part.
_MARGIN = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}


def _constant(*counts: int) -> list[dict[str, Any]]:
    return [{"num_assistant_tokens": n, "num_assistant_tokens_schedule": "constant"} for n in counts]


# kind of proposer -> settings of ``generate`` to try
_THEIR_SETTINGS: dict[str, Sequence[Mapping[str, Any]]] = {
    PLAIN: [{}],
    "n-gram": [{"prompt_lookup_num_tokens": n} for n in (2, 3, 5, 10)],
    "draft-model": [{}, *_constant(2, 3, 5)],  # {}: 20 tokens, fewer if the draft model is unsure
}
# Settings that transformers reads from the assistant's own configuration.
_ASSISTANT = "num_assistant"


class DecodingBenchConfig(DecodingRecipe):
    """Settings of ``decoding.py``, given as ``key=value``.

    Attributes:
        methods: as ``eval --recipe`` reads them: ``methods.NAME.drafter=DIR``, ``methods.NAME.proposer=n-gram``.
        prompts: a benchmark's name, or a file of questions or conversations; first turns are used.
        questions: number of prompts, evenly spread over the file.
        max_new_tokens: new tokens per prompt.
        stop: whether answers end at the target's end tokens.
        rows: numbers of requests side by side.
        rival: whether to measure transformers, too (on a CPU).
        device: device for decoding.
        threads: CPU threads of all sides; None: torch's default.
    """

    methods: dict[str, MethodSpec] = Field(default_factory=dict)
    prompts: str = "sample"
    questions: Positive = 8
    max_new_tokens: Positive = 64
    stop: bool = False
    rows: tuple[Positive, ...] = (1,)
    rival: bool = True
    device: str = "cpu"
    threads: Positive | None = None


def read_prompts(models: Models, name: str, count: int, new: int) -> list[list[int]]:
    """Return the token ids of the first turns of ``count`` questions, rendered with the target's chat template.

    Raises:
        UsageError: a prompt and its ``new`` tokens do not fit the target's context.
    """
    form = resolve_format(models.tokenizer, "auto")
    prompts = [
        PromptBuilder(models.tokenizer, form, system_of(question, None)).ask(question.turns[0])
        for question in load_benchmark(name, count).questions
    ]
    longest, most = max(map(len, prompts)), models.model.config.max_positions
    if longest + new > most:
        raise UsageError(
            "a prompt does not fit the target's context",
            got=f"{longest} tokens and {new} new ones",
            expected=f"{most} at most",
            remedy="lower the number of new tokens, or choose other prompts",
        )
    return prompts


class OurSide:
    """A method of VocabForge for ``rows`` requests side by side; ``results`` and ``plans`` are of the last round."""

    def __init__(
        self,
        models: Models,
        name: str,
        spec: MethodSpec,
        new: int,
        *,
        rows: int = 1,
        ends: Collection[int] = (),
    ) -> None:
        method = build_method(models, spec, name, rows=rows)
        self._decoder, self._new, self._ends = cast("Decoder", method.generator), new, ends
        proposer = self._decoder.proposer
        self.kind = PLAIN if proposer is None else proposer.kind
        self.settings = {"method": method.description}
        self.results: list[Generation] = []
        self.plans = Counter[Plan]()
        control = self._decoder.control
        observe = control.observe

        def counted(figures: Any) -> None:
            self.plans[figures.plan] += 1
            observe(figures)

        setattr(control, "observe", counted)  # noqa: B010 (a method is replaced)

    def round(self, prompts: Prompts) -> None:
        """Continue all prompts."""
        self.plans.clear()
        self.results = self._decoder.generate_batch(
            [Request(list(prompt), self._new, self._ends) for prompt in prompts]
        )

    @property
    def outputs(self) -> list[list[int]]:
        return [result.token_ids for result in self.results]

    def accepted_length(self) -> float | None:
        lengths = [length for result in self.results for length in result.accept_lengths]
        return sum(lengths) / len(lengths) if lengths else None


class TheirSide:
    """transformers' ``generate`` with one set of options; of a batch, prompts are padded on the left.

    Args:
        model: the target.
        assistant: a draft model and, if its tokenizer is another, the options that name both.
    """

    def __init__(
        self,
        model: Any,
        assistant: tuple[Any, Mapping[str, Any]] | None,
        settings: Mapping[str, Any],
        new: int,
        *,
        rows: int = 1,
        ends: Collection[int] = (),
    ) -> None:
        from transformers import GenerationConfig

        self.settings, self._model, self._assistant = dict(settings), model, assistant
        self._new, self._rows, self._ends = new, rows, list(ends)
        drafting = {key: value for key, value in settings.items() if key.startswith(_ASSISTANT)}
        self._options: dict[str, Any] = {key: settings[key] for key in settings if key not in drafting}
        self._options |= {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
        self._options |= {"eos_token_id": self._ends} if ends else {}
        if assistant is not None:
            self._options |= {"assistant_model": assistant[0], **assistant[1]}
        self._own, self._drafting = GenerationConfig(), GenerationConfig(**drafting)
        self.outputs: list[list[int]] = []
        self._forwards = 0

    def round(self, prompts: Prompts) -> None:
        """Continue all prompts."""
        self._model.generation_config = self._own
        if self._assistant is not None:  # carries its schedule from call to call
            self._assistant[0].generation_config = self._drafting
        self.outputs, self._forwards = [], 0
        hook = self._model.register_forward_pre_hook(self._count)
        for first in range(0, len(prompts), self._rows):
            batch = prompts[first : first + self._rows]
            width = max(map(len, batch))
            ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in batch])
            mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch])
            made = self._model.generate(ids, attention_mask=mask, **self._options)[:, width:]
            self.outputs += map(self._cut, made.tolist())
        hook.remove()

    def accepted_length(self) -> float | None:
        count, tokens = len(self.outputs), sum(map(len, self.outputs))
        cycles = self._forwards - count  # a prompt's pass gives its first token
        return (tokens - count) / cycles if self._rows == 1 and cycles else None

    def _cut(self, output: list[int]) -> list[int]:
        stop = next((at for at, token in enumerate(output) if token in self._ends), self._new)
        return output[: stop + 1]

    def _count(self, *_: object) -> None:
        self._forwards += 1


class TheirModels:
    """transformers' models, each loaded once."""

    def __init__(self, config: DecodingBenchConfig) -> None:
        import transformers

        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        self.version = transformers.__version__
        self._target, self._dtype = config.target, DTYPES[config.dtype]
        self.load = cache(self._load)

    def _load(self, path: Path) -> Any:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(path, dtype=self._dtype, trust_remote_code=False)
        return model.eval()

    def candidates(self, kind: str, drafter: Path | None, new: int, **load: Any) -> list[TheirSide]:
        """Return a side for each setting to try against a method; empty if transformers has no such method."""
        foreign = kind in FOREIGN
        settings = _THEIR_SETTINGS.get("draft-model" if foreign else kind, ())
        if load["rows"] > 1 and kind != PLAIN:
            return []
        assistant = None
        if settings and drafter is not None:
            from transformers import PreTrainedTokenizerFast

            folders = {"tokenizer": self._target, "assistant_tokenizer": drafter} if foreign else {}
            read = PreTrainedTokenizerFast.from_pretrained
            assistant = self.load(drafter), {name: read(folder) for name, folder in folders.items()}
        model = self.load(self._target) if settings else None
        return [TheirSide(model, assistant, chosen, new, **load) for chosen in settings]


def bench_decoding(settings: Sequence[str] = (), *, repeats: int = 3) -> dict[str, Any]:
    """Measure plain decoding and each method on both sides.

    Args:
        settings: ``key=value`` of :class:`DecodingBenchConfig`.
        repeats: timed rounds, after one untimed round.

    Returns:
        Plain JSON: environment, settings, and a row per load and method with tokens/s, ratios, accepted lengths,
        how many outputs equal plain decoding's, and the last round's cycles by plan.

    Raises:
        UsageError: the prompts do not fit the target, or settings conflict.
        VocabForgeError: the models cannot be loaded.
    """
    config = parse_config(DecodingBenchConfig, apply_overrides({}, settings), source="the command line")
    with threads_set(config.threads or torch.get_num_threads()):
        backend = config.target_backend
        models = Models(
            config.target, config.tokenizer, device=config.device, dtype=config.dtype, backend=backend
        )
        prompts = read_prompts(models, config.prompts, config.questions, config.max_new_tokens)
        theirs = TheirModels(config) if config.rival else None
        rows = [
            row for load in config.rows for row in _measure(config, models, prompts, theirs, load, repeats)
        ]
        environment = describe_environment(device=config.device, dtype=config.dtype)
    if theirs is not None:
        environment |= {"transformers": theirs.version}
    return {
        "environment": environment,
        "settings": config.model_dump(mode="json") | {"repeats": repeats},
        "methods": rows,
    }


def _measure(
    config: DecodingBenchConfig,
    models: Models,
    prompts: Prompts,
    theirs: TheirModels | None,
    rows: int,
    repeats: int,
) -> Iterator[dict[str, Any]]:
    """Yield a row per method for ``rows`` requests side by side."""
    new = config.max_new_tokens
    load: dict[str, Any] = {"rows": rows, "ends": set(models.tokenizer.eos_ids) if config.stop else ()}
    if rows > 1:
        prompts = list(islice(cycle(prompts), max(2 * rows, len(prompts))))
    ours: dict[str, OurSide] = {}
    best: dict[tuple[str, Path | None], tuple[TheirSide | None, list[dict[str, Any]]]] = {}
    keys: dict[str, tuple[str, Path | None]] = {}
    for name, spec in {PLAIN: MethodSpec(), **config.methods}.items():
        say(f"{name}: loading, trying settings")
        ours[name] = own = OurSide(models, name, spec, new, **load)
        keys[name] = key = ("draft-model" if own.kind in FOREIGN else own.kind), spec.drafter
        if key not in best:
            tried = [] if theirs is None else theirs.candidates(own.kind, spec.drafter, new, **load)
            best[key] = _fastest(tried, prompts)
    sides: dict[Any, OurSide | TheirSide] = {**ours, **{key: side for key, (side, _) in best.items() if side}}
    for side in sides.values():
        side.round(prompts)  # warm-up
    calls = {key: partial(seconds_of, side.round, prompts) for key, side in sides.items()}
    seconds = take_turns(f"{rows} side by side", calls, repeats)

    def figures(key: Any) -> dict[str, Any]:
        side = sides[key]
        tokens = sum(map(len, side.outputs))
        return {
            "tokens_per_s": spread([tokens / taken for taken in seconds[key]]),
            "accepted_length": side.accepted_length(),
            "settings": side.settings,
            **_compare(models, config.dtype, prompts, side.outputs, ours[PLAIN].outputs),
        }

    for name, key in keys.items():
        other, settings_tried = best[key]
        yield {
            "method": name,
            "requests": rows,
            "ours": figures(name),
            "over_plain": speed_up(seconds[name], seconds[PLAIN]),
            "theirs": None if other is None else figures(key),
            "ratio": None if other is None else speed_up(seconds[name], seconds[key]),
            "tried": settings_tried,
            "cycles": {_named(plan): count for plan, count in ours[name].plans.most_common()},
        }


def _named(plan: Plan) -> str:
    return "plain" if plan == PLAIN_PLAN else f"{plan.by} {plan.nodes - 1} drafts".strip()


def _fastest(sides: Sequence[TheirSide], prompts: Prompts) -> tuple[TheirSide | None, list[dict[str, Any]]]:
    """Return transformers' fastest settings on the first two prompts, and what each gave."""
    tried, rates = list[dict[str, Any]](), list[tuple[float, TheirSide]]()
    for side in sides:
        try:
            side.round(prompts[:1])
            seconds = seconds_of(side.round, prompts[:2])
        except (ValueError, TypeError, RuntimeError, LookupError, AttributeError) as error:
            tried.append({"settings": side.settings, "error": f"{type(error).__name__}: {error}"})
            continue
        rates.append((sum(map(len, side.outputs)) / seconds, side))
        tried.append({"settings": side.settings, "tokens_per_s": rates[-1][0]})
    return max(rates, key=lambda rate: rate[0])[1] if rates else None, tried


@torch.inference_mode()
def _compare(
    models: Models, dtype: str, prompts: Prompts, outputs: Prompts, plain: Prompts
) -> dict[str, Any]:
    """Count outputs equal to plain decoding's; judge the others by the target's margin where they part."""
    differ = []
    for number, (prompt, own, other) in enumerate(zip(prompts, outputs, plain, strict=True)):
        if (at := first_difference(own, other)) is None:
            continue
        best = next_logits(models.model, [*prompt, *own[:at]]).float().topk(2).values
        margin = float(best[0] - best[1])
        tie = margin <= _MARGIN[dtype] and at < min(len(own), len(other))
        differ.append({"prompt": number, "token": at, "margin": margin, "tie": tie})
    return {"equal": len(outputs) - len(differ), "outputs": len(outputs), "differ": differ}


def shown(result: dict[str, Any]) -> list[DataTable | str]:
    """Return the table of methods and the remarks."""
    settings, lines = result["settings"], []
    remarks = [
        "requests: side by side. tokens/s: of all requests together, median of the rounds. ratio: VocabForge to "
        "transformers, round by round (lowest to highest); over plain: to VocabForge's own plain decoding. accepted: "
        "tokens a pass of the target. equal: outputs that are plain decoding's. Both: VocabForge / transformers. "
        "cycles: of the last round, by what was drafted."
    ]
    for row in result["methods"]:
        sides = {row["method"]: row["ours"], f"transformers for {row['method']}": row["theirs"]}
        known = {name: side for name, side in sides.items() if side is not None}
        rates = [f"{side['tokens_per_s']['median']:.1f}" for side in known.values()]
        lengths = [side["accepted_length"] for side in known.values()]
        total = sum(row["cycles"].values())
        lines.append(
            [
                str(row["requests"]),
                row["method"],
                rates[0],
                rates[1] if len(rates) > 1 else None,
                spread_text(row["ratio"]),
                spread_text(row["over_plain"]),
                " / ".join("-" if length is None else f"{length:.2f}" for length in lengths),
                " / ".join(f"{side['equal']} of {side['outputs']}" for side in known.values()),
                ", ".join(f"{name} {count / total:.0%}" for name, count in list(row["cycles"].items())[:3]),
            ]
        )
        for name, side in known.items():
            named = ", ".join(f"{key} {value}" for key, value in side["settings"].items())
            remarks.append(f"{name}: {named or 'defaults'}")
            remarks += [
                f"{name}: prompt {part['prompt'] + 1} differs from plain decoding's output at token "
                f"{part['token'] + 1}, where the target's two best logits are {part['margin']:.2g} apart: "
                + ("a tie within rounding" if part["tie"] else "WRONG")
                for part in side["differ"]
            ]
        if row["theirs"] is None and row["tried"]:
            remarks.append(f"{row['method']}: transformers refused every setting: {row['tried'][0]['error']}")
    title = f"{settings['questions']} prompts, {settings['max_new_tokens']} new tokens each, greedy"
    columns = (
        "requests",
        "method<",
        "tokens/s",
        "transformers'",
        "ratio",
        "over plain",
        "accepted",
        "equal",
        "cycles<",
    )
    return [DataTable(title, columns, lines), *dict.fromkeys(remarks)]


if __name__ == "__main__":
    run(__doc__, bench_decoding, shown)
