"""The two sides of ``decoding.py``: a method of VocabForge, and transformers' ``generate``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from decoding_settings import DecodingBenchConfig

from vocabforge.decode.accelerate.compiled import compile_passes
from vocabforge.decode.build.methods import build_method
from vocabforge.decode.build.models import Models
from vocabforge.decode.build.recipe import PLAIN
from vocabforge.decode.build.spec import MethodSpec
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import FOREIGN
from vocabforge.decode.request import Generation
from vocabforge.models.target.load import DTYPES


class OurRun:
    """A method of VocabForge; above temperature 0 every prompt uses the same seed in every round.

    Attributes:
        settings: requested settings, and those that the method reports.
        kind: kind of the proposer, or ``plain``.
    """

    def __init__(self, models: Models, config: DecodingBenchConfig, name: str, spec: MethodSpec) -> None:
        if spec.drafts and not (spec.tree or spec.tree_file or spec.topk or spec.total_nodes):
            spec = spec.model_copy(update={"tree": "auto"})
        self._temperature, self._compiler = config.temperature, compile_passes() if config.compile else None
        method = build_method(models, spec, name, wrap=self._compiler, sampled=config.temperature > 0)
        self._decoder = cast("Decoder", method.generator)
        proposer = self._decoder.proposer
        self.kind = PLAIN if proposer is None else proposer.kind
        self.settings: dict[str, Any] = {}
        if spec.drafts:
            self.settings = {
                **spec.model_dump(mode="json", include=set(spec.given())),
                "is": method.description,
            }
        if method.verifier is not None:
            self.settings["lossless"] = method.lossless

    @property
    def compile_s(self) -> float:
        """Seconds spent on compilation so far."""
        return 0.0 if self._compiler is None else self._compiler.seconds

    def generate(self, prompt: Sequence[int], new: int) -> Generation:
        """Continue a prompt by ``new`` tokens, ignoring stop tokens."""
        return self._decoder.generate(prompt, max_new_tokens=new, stop_ids=(), temperature=self._temperature)


def _constant(*counts: int) -> list[dict[str, Any]]:
    return [{"num_assistant_tokens": n, "num_assistant_tokens_schedule": "constant"} for n in counts]


# transformers' defaults are also tried: 20 assistant tokens, stopping when its draft model is unsure.
_HEURISTIC = {"num_assistant_tokens": 5, "num_assistant_tokens_schedule": "heuristic"}
# With two vocabularies, transformers' only greedy method re-encodes texts; its default lookbehind is 10.
_NEAR = {**_constant(5)[0], "target_lookbehind": 5, "assistant_lookbehind": 5}
_SURE = {**_constant(5)[0], "assistant_confidence_threshold": 0.0}  # never stop early
# kind of proposer -> settings of ``generate`` to try; transformers has no other kinds
SETTINGS: dict[str, Sequence[Mapping[str, Any]]] = {
    PLAIN: [{}],
    "draft-model": [{}, *_constant(2, 3, 5), _HEURISTIC],
    "n-gram": [{"prompt_lookup_num_tokens": n} for n in (2, 3, 5, 10)],
    "early-exit": [
        {"assistant_early_exit": part} | rest for part in (4, 2) for rest in ({}, *_constant(2, 3, 5))
    ],
    "texts": [{}, *_constant(2, 3, 5, 8), _HEURISTIC, _NEAR, _SURE],
}
# Settings that transformers reads from the assistant's own configuration.
_DRAFTING = ("num_assistant", "assistant_confidence", "assistant_lookbehind", "target_lookbehind")


class TheirRun:
    """transformers' ``generate`` with one set of options.

    Args:
        model: the target.
        assistant: a draft model, the target itself for an early exit, or None.
        settings: generation settings; those of the assistant go to its configuration, which carries its
            schedule and confidence threshold from call to call.
        count: target passes so far.
        tokenizers: ``tokenizer`` and ``assistant_tokenizer`` if the two have different ones.
    """

    compile_s = 0.0

    def __init__(
        self,
        model: Any,
        assistant: Any | None,
        settings: Mapping[str, Any],
        count: Callable[[], int],
        tokenizers: Mapping[str, Any],
    ) -> None:
        from transformers import GenerationConfig

        self.settings = dict(settings)
        self._model, self._assistant, self._count = model, assistant, count
        drafting = {key: value for key, value in settings.items() if key.startswith(_DRAFTING)}
        self._options = {key: value for key, value in settings.items() if key not in drafting}
        self._config, self._drafting = GenerationConfig(), GenerationConfig(**drafting)
        if assistant is not None and assistant is not model:
            self._options |= {"assistant_model": assistant, **tokenizers}

    def generate(self, prompt: Sequence[int], new: int) -> Generation:
        """Continue a prompt by ``new`` tokens, greedily."""
        ids, before = torch.tensor([list(prompt)]), self._count()
        self._model.generation_config = self._config
        if self._assistant is not None:
            self._assistant.generation_config = self._drafting
        output = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
            **self._options,
        )
        return Generation(output[0, len(prompt) :].tolist(), target_forwards=self._count() - before)


class TheirSide:
    """transformers' models, each loaded once."""

    def __init__(self, config: DecodingBenchConfig) -> None:
        import transformers

        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        self.versions = {"transformers": transformers.__version__}
        self._target, self._dtype = config.target, DTYPES[config.dtype]
        self._loaded: dict[Path, Any] = {}
        self.model = self._load(config.target)
        self.layers = int(self.model.config.num_hidden_layers)
        self._forwards = 0
        self.model.register_forward_pre_hook(self._count)

    def _load(self, path: Path) -> Any:
        from transformers import AutoModelForCausalLM

        if path not in self._loaded:
            model = AutoModelForCausalLM.from_pretrained(path, dtype=self._dtype, trust_remote_code=False)
            self._loaded[path] = model.eval()
        return self._loaded[path]

    def _count(self, model: Any, inputs: Any) -> None:
        # An early exit drafts with the first layers of the same module.
        self._forwards += int(model.config.num_hidden_layers == self.layers)

    def candidates(self, kind: str, drafter: Path | None) -> list[TheirRun]:
        """Return runs with the settings to try against a method; empty if transformers has no such method.

        Args:
            kind: kind of the method's proposer; see :func:`counterpart`.
            drafter: folder of the drafter.
        """
        assistant, tokenizers = None, dict[str, Any]()
        if drafter is not None and kind in ("draft-model", "texts"):
            assistant = self._load(drafter)
        if drafter is not None and kind == "texts":
            from transformers import PreTrainedTokenizerFast

            read = PreTrainedTokenizerFast.from_pretrained
            tokenizers = {"tokenizer": read(self._target), "assistant_tokenizer": read(drafter)}
        found = []
        for settings in SETTINGS.get(kind, ()):
            if kind == "early-exit":
                exit_at = max(1, self.layers // settings["assistant_early_exit"])
                settings, assistant = {**settings, "assistant_early_exit": exit_at}, self.model
            found.append(TheirRun(self.model, assistant, settings, lambda: self._forwards, tokenizers))
        return found


def counterpart(kind: str) -> str:
    """Return the key of :data:`SETTINGS` for a proposer; all proposers with two vocabularies share a key."""
    return "texts" if kind in FOREIGN else kind
