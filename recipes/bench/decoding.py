"""Compare the decoding speed of VocabForge with transformers' ``generate``, plain and assisted, on the same prompts.

    python recipes/bench/decoding.py target=FILE.gguf prompts=spec-bench \\
        methods.n-gram.proposer=n-gram methods.eagle3.drafter=smollm2-135m

Both sides decode greedily with the same number of new tokens, dtype and threads, and take turns. N-grams meet prompt
lookup, a draft model meets assisted generation; transformers has nothing like the other methods. Its side runs with the
fastest of several settings. Warm-up and that search are not timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from command import PromptedRecipe, read_prompts, run, seconds_of, speed_up, spread, spread_text, take_turns

from vocabforge.core.config import apply_overrides, parse_config
from vocabforge.core.console import DataTable, say
from vocabforge.decode.build.methods import build_method
from vocabforge.decode.build.models import Models
from vocabforge.decode.build.recipe import PLAIN
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import FOREIGN
from vocabforge.decode.spec import MethodSpec
from vocabforge.evaluate.identity.compare import first_difference
from vocabforge.evaluate.identity.rounding import next_logits
from vocabforge.evaluate.run.environment import describe_environment
from vocabforge.models.device import threads_set
from vocabforge.models.target.load import DTYPES

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


class OurSide:
    """A method of VocabForge; ``outputs`` are those of the last round."""

    def __init__(self, models: Models, name: str, spec: MethodSpec, new: int) -> None:
        method = build_method(models, spec, name)
        self._decoder, self._new = cast("Decoder", method.generator), new
        proposer = self._decoder.proposer
        self.kind = PLAIN if proposer is None else proposer.kind
        self.settings = {"method": method.description}
        self.outputs: list[list[int]] = []
        self.forwards = 0

    def round(self, prompts: Sequence[Sequence[int]]) -> None:
        """Continue all prompts, ignoring stop tokens."""
        made = [self._decoder.generate(one, max_new_tokens=self._new, stop_ids=()) for one in prompts]
        self.outputs = [one.token_ids for one in made]
        self.forwards = sum(one.target_forwards for one in made)


class TheirSide:
    """transformers' ``generate`` with one set of options.

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
    ) -> None:
        from transformers import GenerationConfig

        self.settings, self._model, self._assistant = dict(settings), model, assistant
        drafting = {key: value for key, value in settings.items() if key.startswith(_ASSISTANT)}
        self._options: dict[str, Any] = {key: settings[key] for key in settings if key not in drafting}
        self._options |= {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
        if assistant is not None:
            self._options |= {"assistant_model": assistant[0], **assistant[1]}
        self._own, self._drafting = GenerationConfig(), GenerationConfig(**drafting)
        self.outputs: list[list[int]] = []
        self.forwards = 0

    def round(self, prompts: Sequence[Sequence[int]]) -> None:
        """Continue all prompts, ignoring stop tokens."""
        self._model.generation_config = self._own
        if self._assistant is not None:  # carries its schedule from call to call
            self._assistant[0].generation_config = self._drafting
        self.outputs, self.forwards = [], 0
        hook = self._model.register_forward_pre_hook(self._count)
        for prompt in prompts:
            ids = torch.tensor([list(prompt)])
            made = self._model.generate(ids, attention_mask=torch.ones_like(ids), **self._options)
            self.outputs.append(made[0, len(prompt) :].tolist())
        hook.remove()

    def _count(self, *_: object) -> None:
        self.forwards += 1


class TheirModels:
    """transformers' models, each loaded once."""

    def __init__(self, config: PromptedRecipe) -> None:
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

    def candidates(self, kind: str, drafter: Path | None, new: int) -> list[TheirSide]:
        """Return a side for each setting to try against a method; empty if transformers has no such method."""
        foreign = kind in FOREIGN
        settings = _THEIR_SETTINGS.get("draft-model" if foreign else kind, ())
        assistant = None
        if settings and drafter is not None:
            from transformers import PreTrainedTokenizerFast

            folders = {"tokenizer": self._target, "assistant_tokenizer": drafter} if foreign else {}
            read = PreTrainedTokenizerFast.from_pretrained
            assistant = self.load(drafter), {name: read(folder) for name, folder in folders.items()}
        return [TheirSide(self.load(self._target), assistant, one, new) for one in settings]


def bench_decoding(settings: Sequence[str] = (), *, repeats: int = 3) -> dict[str, Any]:
    """Measure plain decoding and each method on both sides.

    Args:
        settings: ``key=value`` of :class:`~command.PromptedRecipe`.
        repeats: timed rounds, after one untimed round.

    Returns:
        Plain JSON: environment, settings, and a row per method with tokens/s, ratios, accepted lengths, and
        how many outputs equal plain decoding's.

    Raises:
        UsageError: the prompts do not fit the target, or settings conflict.
        VocabForgeError: the models cannot be loaded.
    """
    config = parse_config(PromptedRecipe, apply_overrides({}, settings), source="the command line")
    with threads_set(config.threads or torch.get_num_threads()):
        return _measure(config, repeats)


def _measure(config: PromptedRecipe, repeats: int) -> dict[str, Any]:
    models = Models(config.target, config.tokenizer, device="cpu", dtype=config.dtype)
    new = config.max_new_tokens
    prompts = read_prompts(models, config.prompts, config.questions, new)
    theirs = TheirModels(config)
    ours: dict[str, OurSide] = {}
    best: dict[tuple[str, Path | None], tuple[TheirSide | None, list[dict[str, Any]]]] = {}
    keys: dict[str, tuple[str, Path | None]] = {}
    for name, spec in {PLAIN: MethodSpec(), **config.methods}.items():
        say(f"{name}: loading, trying settings")
        ours[name] = own = OurSide(models, name, spec, new)
        keys[name] = key = ("draft-model" if own.kind in FOREIGN else own.kind), spec.drafter
        if key not in best:
            best[key] = _fastest(theirs.candidates(own.kind, spec.drafter, new), prompts)
    sides: dict[Any, OurSide | TheirSide] = {**ours, **{key: one for key, (one, _) in best.items() if one}}
    for side in sides.values():
        side.round(prompts)  # warm-up
    calls = {key: partial(seconds_of, side.round, prompts) for key, side in sides.items()}
    seconds = take_turns("decoding", calls, repeats)

    def figures(key: Any) -> dict[str, Any]:
        side = sides[key]
        tokens = sum(map(len, side.outputs))
        cycles = side.forwards - len(prompts)  # a prompt's pass gives its first token
        return {
            "tokens_per_s": spread([tokens / one for one in seconds[key]]),
            "accepted_length": (tokens - len(prompts)) / cycles if cycles else None,
            "settings": side.settings,
            **_compare(models, config.dtype, prompts, side.outputs, ours[PLAIN].outputs),
        }

    rows: list[dict[str, Any]] = []
    for name, key in keys.items():
        other, tried = best[key]
        rows.append(
            {
                "method": name,
                "ours": figures(name),
                "over_plain": speed_up(seconds[name], seconds[PLAIN]),
                "theirs": None if other is None else figures(key),
                "ratio": None if other is None else speed_up(seconds[name], seconds[key]),
                "tried": tried,
            }
        )
    return {
        "environment": describe_environment(device="cpu", dtype=config.dtype)
        | {"transformers": theirs.version},
        "settings": config.model_dump(mode="json") | {"repeats": repeats},
        "methods": rows,
    }


def _fastest(
    sides: Sequence[TheirSide], prompts: Sequence[Sequence[int]]
) -> tuple[TheirSide | None, list[dict[str, Any]]]:
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
    return max(rates, key=lambda one: one[0])[1] if rates else None, tried


@torch.inference_mode()
def _compare(
    models: Models,
    dtype: str,
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    plain: Sequence[Sequence[int]],
) -> dict[str, Any]:
    """Count outputs equal to plain decoding's; judge the others by the target's margin where they part."""
    differ = []
    for number, (prompt, own, other) in enumerate(zip(prompts, outputs, plain, strict=True)):
        if (at := first_difference(own, other)) is None:
            continue
        best = next_logits(models.model, [*prompt, *own[:at]]).float().topk(2).values
        margin = float(best[0] - best[1])
        tie = margin <= _MARGIN[dtype] and len(own) == len(other)
        differ.append({"prompt": number, "token": at, "margin": margin, "tie": tie})
    return {"equal": len(outputs) - len(differ), "outputs": len(outputs), "differ": differ}


def shown(result: dict[str, Any]) -> list[DataTable | str]:
    """Return the table of methods and the remarks."""
    settings, rows = result["settings"], []
    remarks = [
        "tokens/s: median of the rounds. ratio: VocabForge to transformers, round by round (lowest to highest); over "
        "plain: to VocabForge's own plain decoding. accepted: tokens a pass of the target. equal: outputs that are "
        "plain decoding's. Both: VocabForge / transformers."
    ]
    for row in result["methods"]:
        sides = {row["method"]: row["ours"], f"transformers for {row['method']}": row["theirs"]}
        known = {name: side for name, side in sides.items() if side is not None}
        rates = [f"{side['tokens_per_s']['median']:.1f}" for side in known.values()]
        lengths = [side["accepted_length"] for side in known.values()]
        rows.append(
            [
                row["method"],
                rates[0],
                rates[1] if len(rates) > 1 else None,
                spread_text(row["ratio"]),
                spread_text(row["over_plain"]),
                " / ".join("-" if one is None else f"{one:.2f}" for one in lengths),
                " / ".join(f"{side['equal']} of {side['outputs']}" for side in known.values()),
            ]
        )
        for name, side in known.items():
            named = ", ".join(f"{key} {value}" for key, value in side["settings"].items())
            remarks.append(f"{name}: {named or 'defaults'}")
            remarks += [
                f"{name}: prompt {one['prompt'] + 1} differs from plain decoding's output at token "
                f"{one['token'] + 1}, where the target's two best logits are {one['margin']:.2g} apart: "
                + ("a tie within rounding" if one["tie"] else "WRONG")
                for one in side["differ"]
            ]
        if row["theirs"] is None and row["tried"]:
            remarks.append(f"{row['method']}: transformers refused every setting: {row['tried'][0]['error']}")
    title = f"{result['methods'][0]['ours']['outputs']} prompts, {settings['max_new_tokens']} new tokens each"
    columns = ("method<", "tokens/s", "transformers'", "ratio", "over plain", "accepted", "equal")
    return [DataTable(title, columns, rows), *remarks]


if __name__ == "__main__":
    run(__doc__, bench_decoding, shown)
