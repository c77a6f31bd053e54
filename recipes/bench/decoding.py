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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle, islice
from operator import eq
from pathlib import Path
from typing import Any, cast

import torch
from command import run, seconds_of, speed_up, spread, spread_text, take_turns
from pydantic import Field

from vocabforge.core.config import Positive, apply_overrides, parse_config
from vocabforge.core.console import DataTable, say
from vocabforge.core.errors import UsageError
from vocabforge.core.provenance import package_versions
from vocabforge.corpus.tokenizer.prompt_format import resolve_format
from vocabforge.decode.build.methods import build_method
from vocabforge.decode.build.models import Models
from vocabforge.decode.build.recipe import PLAIN, DecodingRecipe
from vocabforge.decode.engine import Decoder
from vocabforge.decode.interface import PLAIN_PLAN, Plan
from vocabforge.decode.proposers.registry import FOREIGN
from vocabforge.decode.request import Generation, Request
from vocabforge.decode.spec import DRAFT_MODEL, MethodSpec
from vocabforge.evaluate.benchmarks import load_benchmark
from vocabforge.evaluate.run.environment import describe_environment
from vocabforge.evaluate.run.prompts import PromptBuilder, system_of
from vocabforge.models.target.load import DTYPES

Prompts = Sequence[Sequence[int]]
_CONSTANT = {"num_assistant_tokens_schedule": "constant"}
# kind of proposer -> settings of ``generate`` to try
_THEIR_SETTINGS: dict[str, Sequence[Mapping[str, Any]]] = {
    PLAIN: [{}],
    "n-gram": [{"prompt_lookup_num_tokens": n} for n in (2, 3, 5, 10)],
    # {}: 20 tokens, fewer if the draft model is unsure
    DRAFT_MODEL: [{}, *({"num_assistant_tokens": n, **_CONSTANT} for n in (2, 3, 5))],
}


class DecodingBenchConfig(DecodingRecipe):
    """Settings of ``decoding.py``, given as ``key=value``.

    Attributes:
        methods: as ``eval --recipe`` reads them: ``methods.NAME.drafter=DIR``, ``methods.NAME.proposer=n-gram``.
        prompts: a benchmark's name, or a file of questions or conversations; first turns are used.
        questions: number of prompts, evenly spread over the file.
        max_new_tokens: new tokens per prompt.
        stop: whether answers end at the target's end tokens.
        rows: numbers of requests side by side.
        rival: whether to also measure transformers (on a CPU).
        device: device for decoding.
    """

    methods: dict[str, MethodSpec] = Field(default_factory=dict)
    prompts: str = "sample"
    questions: Positive = 8
    max_new_tokens: Positive = 64
    stop: bool = False
    rows: tuple[Positive, ...] = (1,)
    rival: bool = True
    device: str = "cpu"


@dataclass(frozen=True)
class Load:
    """What every side does: ``new`` tokens, or until one of ``ends``, for ``rows`` requests side by side."""

    rows: int
    new: int
    ends: tuple[int, ...]


def read_prompts(models: Models, config: DecodingBenchConfig) -> list[list[int]]:
    """Return the token ids of the first turns of the questions, rendered with the target's chat template.

    Raises:
        UsageError: a prompt and its new tokens do not fit the target's context.
    """
    form = resolve_format(models.tokenizer, "auto")
    prompts = [
        PromptBuilder(models.tokenizer, form, system_of(question, None)).ask(question.turns[0])
        for question in load_benchmark(config.prompts, config.questions).questions
    ]
    longest, most = max(map(len, prompts)), models.model.config.max_positions
    if longest + config.max_new_tokens > most:
        raise UsageError(
            "a prompt does not fit the target's context",
            got=f"{longest} tokens and {config.max_new_tokens} new ones",
            expected=f"{most} at most",
            remedy="lower the number of new tokens, or choose other prompts",
        )
    return prompts


class OurSide:
    """A method of VocabForge; ``results`` and ``plans`` are of the last round."""

    def __init__(self, models: Models, name: str, spec: MethodSpec, load: Load) -> None:
        method = build_method(models, spec, name, rows=load.rows)
        self._decoder, self._load = cast("Decoder", method.generator), load
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
        self.plans.clear()
        requests = [Request(list(prompt), self._load.new, self._load.ends) for prompt in prompts]
        self.results = self._decoder.generate_batch(requests)

    @property
    def outputs(self) -> list[list[int]]:
        return [result.token_ids for result in self.results]

    def accepted_length(self) -> float | None:
        lengths = [length for result in self.results for length in result.accept_lengths]
        return sum(lengths) / len(lengths) if lengths else None


class TheirSide:
    """transformers' ``generate`` with one set of options; of a batch, prompts are padded on the left.

    Args:
        assistant: a draft model or None, and the options that name both tokenizers if its own is another.
    """

    def __init__(
        self, model: Any, assistant: tuple[Any, Mapping[str, Any]], settings: Mapping[str, Any], load: Load
    ) -> None:
        from transformers import GenerationConfig

        self.settings, self._model, self._load = settings, model, load
        self._assistant, tokenizers = assistant
        # What concerns the assistant is read from its own configuration.
        drafting = {key: value for key, value in settings.items() if key.startswith("num_assistant")}
        self._options = {key: value for key, value in settings.items() if key not in drafting}
        self._options |= {"max_new_tokens": load.new, "do_sample": False, "pad_token_id": 0}
        self._options |= {"eos_token_id": list(load.ends)} if load.ends else {}
        self._options |= {} if self._assistant is None else {"assistant_model": self._assistant, **tokenizers}
        self._own, self._drafting = GenerationConfig(), GenerationConfig(**drafting)
        self.outputs: list[list[int]] = []
        self._forwards = 0

    def round(self, prompts: Prompts) -> None:
        self._model.generation_config = self._own
        if self._assistant is not None:  # carries its schedule from call to call
            self._assistant.generation_config = self._drafting
        self.outputs, self._forwards = [], 0
        hook = self._model.register_forward_pre_hook(self._count)
        for first in range(0, len(prompts), self._load.rows):
            batch = prompts[first : first + self._load.rows]
            width = max(map(len, batch))
            ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in batch])
            mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch])
            made = self._model.generate(ids, attention_mask=mask, **self._options)[:, width:]
            self.outputs += map(self._cut, made.tolist())
        hook.remove()

    def accepted_length(self) -> float | None:
        count, tokens = len(self.outputs), sum(map(len, self.outputs))
        cycles = self._forwards - count  # a prompt's pass gives its first token
        return (tokens - count) / cycles if self._load.rows == 1 and cycles else None

    def _cut(self, output: list[int]) -> list[int]:
        stop = next((at for at, token in enumerate(output) if token in self._load.ends), len(output))
        return output[: stop + 1]

    def _count(self, *_: object) -> None:
        self._forwards += 1


def fastest_rival(
    load_model: Callable[[Path], Any],
    target: Path,
    load: Load,
    prompts: Prompts,
    kind: str,
    drafter: Path | None,
    foreign: bool,
) -> TheirSide | str | None:
    """Return transformers with the settings that are fastest on the first two prompts.

    Args:
        kind: of the proposer that it meets.
        foreign: whether the drafter has another tokenizer.

    Returns:
        None if transformers has nothing of the kind; its error if it refuses all settings.
    """
    settings = _THEIR_SETTINGS.get(kind, ())
    if not settings or (load.rows > 1 and kind != PLAIN):
        return None
    tokenizers = {}
    if foreign:
        from transformers import PreTrainedTokenizerFast

        folders = {"tokenizer": target, "assistant_tokenizer": drafter}
        tokenizers = {
            name: PreTrainedTokenizerFast.from_pretrained(folder) for name, folder in folders.items()
        }
    assistant = None if drafter is None else load_model(drafter), tokenizers
    rates, refused = dict[TheirSide, float](), None
    for chosen in settings:
        side = TheirSide(load_model(target), assistant, chosen, load)
        try:
            side.round(prompts[:1])
            seconds = seconds_of(side.round, prompts[:2])
        except (ValueError, TypeError, RuntimeError, LookupError, AttributeError) as error:
            refused = f"{type(error).__name__}: {error}"
        else:
            rates[side] = sum(map(len, side.outputs)) / seconds
    return max(rates, key=rates.__getitem__) if rates else refused


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
    backend = config.target_backend
    models = Models(
        config.target, config.tokenizer, device=config.device, dtype=config.dtype, backend=backend
    )
    prompts = read_prompts(models, config)
    load_model = cache(partial(_their_model, dtype=DTYPES[config.dtype]))
    ends = tuple(models.tokenizer.eos_ids) if config.stop else ()
    rows = [
        row
        for count in config.rows
        for row in _measure(
            config, models, prompts, load_model, Load(count, config.max_new_tokens, ends), repeats
        )
    ]
    environment = describe_environment(device=config.device, dtype=config.dtype)
    return {
        "environment": {**environment, **package_versions()},
        "settings": config.model_dump(mode="json") | {"repeats": repeats},
        "methods": rows,
    }


def _their_model(path: Path, dtype: torch.dtype) -> Any:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(path, dtype=dtype, trust_remote_code=False).eval()


def _measure(
    config: DecodingBenchConfig,
    models: Models,
    prompts: Prompts,
    load_model: Callable[[Path], Any],
    load: Load,
    repeats: int,
) -> Iterator[dict[str, Any]]:
    """Yield a row per method under a load."""
    if load.rows > 1:
        prompts = list(islice(cycle(prompts), max(2 * load.rows, len(prompts))))
    rival = cache(partial(fastest_rival, load_model, config.target, load, prompts))
    ours: dict[str, OurSide] = {}
    theirs: dict[str, TheirSide | str | None] = {}
    for name, spec in {PLAIN: MethodSpec(), **config.methods}.items():
        say(f"{name}: loading, trying settings")
        ours[name] = own = OurSide(models, name, spec, load)
        foreign = own.kind in FOREIGN
        kind = DRAFT_MODEL if foreign else own.kind
        theirs[name] = rival(kind, spec.drafter, foreign) if config.rival else None
    sides = {
        side: partial(seconds_of, side.round, prompts)
        for side in (*ours.values(), *theirs.values())
        if isinstance(side, (OurSide, TheirSide))
    }
    for warm_up in sides.values():
        warm_up()
    seconds = take_turns(f"{load.rows} side by side", sides, repeats)

    def figures(side: OurSide | TheirSide) -> dict[str, Any]:
        tokens = sum(map(len, side.outputs))
        return {
            "tokens_per_s": spread([tokens / taken for taken in seconds[side]]),
            "accepted_length": side.accepted_length(),
            "settings": dict(side.settings),
            "equal": sum(map(eq, side.outputs, ours[PLAIN].outputs)),
            "outputs": len(side.outputs),
        }

    for name, own in ours.items():
        rival_side = theirs[name]
        other = rival_side if isinstance(rival_side, TheirSide) else None
        yield {
            "method": name,
            "requests": load.rows,
            "ours": figures(own),
            "over_plain": speed_up(seconds[own], seconds[ours[PLAIN]]),
            "theirs": other and figures(other),
            "ratio": other and speed_up(seconds[own], seconds[other]),
            "refused": rival_side if isinstance(rival_side, str) else None,
            "cycles": {_named(plan): count for plan, count in own.plans.most_common()},
        }


def _named(plan: Plan) -> str:
    return "plain" if plan == PLAIN_PLAN else f"{plan.by} {plan.nodes - 1} drafts".strip()


def shown(result: dict[str, Any]) -> list[DataTable | str]:
    columns = ("requests", "method<", "tokens/s", "transformers'", "ratio", "over plain", "accepted", "equal")
    settings, lines = result["settings"], []
    remarks = [
        "requests: side by side. tokens/s: of all requests together, median of the rounds. ratio: VocabForge to "
        "transformers, round by round (lowest to highest); over plain: to VocabForge's own plain decoding. accepted: "
        "tokens a pass of the target. equal: outputs that are plain decoding's (eval judges others). Both: VocabForge "
        "/ transformers. cycles: of the last round, by what was drafted."
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
        if row["refused"]:
            remarks.append(f"{row['method']}: transformers refused every setting: {row['refused']}")
    title = f"{settings['questions']} prompts, {settings['max_new_tokens']} new tokens each, greedy"
    return [DataTable(title, (*columns, "cycles<"), lines), *dict.fromkeys(remarks)]


if __name__ == "__main__":
    run(__doc__, bench_decoding, shown)
