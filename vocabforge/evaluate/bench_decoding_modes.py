"""What ``vocabforge bench decoding`` compares: a mode on VocabForge's side and on transformers'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from ..core.errors import UsageError
from ..decode.build import DTYPES
from ..decode.compiled import PassCompiler, compile_passes
from ..decode.engine import Decoder
from ..decode.proposers import DraftOptions, ProposerParts, make_proposer
from ..export.formats import load_drafter
from ..models.drafter_io import TargetTensors
from ..models.eagle3 import Eagle3Drafter
from ..models.lean import load_target
from .widen import widen_drafter, widen_target


@dataclass(frozen=True)
class Done:
    """New tokens of one prompt, and passes of the target over all its layers."""

    token_ids: list[int]
    forwards: int


class Run(Protocol):
    """One side of a mode with its settings.

    Attributes:
        settings: as its own documentation names them.
        parts: seconds by part, of all that it generated so far; empty where it does not tell.
        compile_s: seconds spent compiling so far.
    """

    settings: dict[str, Any]
    parts: dict[str, float]

    @property
    def compile_s(self) -> float: ...

    def generate(self, prompt: Sequence[int], new: int) -> Done:
        """Continue a prompt by ``new`` tokens, greedily."""
        ...


@dataclass(frozen=True)
class Mode:
    """A way of decoding.

    Attributes:
        proposer: VocabForge's; None decodes plainly.
        needs: the setting whose folder it needs.
        tokens: draft tokens of VocabForge's chain.
        theirs: settings of ``generate`` that are tried; none where transformers has no such mode.
    """

    proposer: str | None
    needs: str | None = None
    tokens: int | None = None
    theirs: Sequence[Mapping[str, Any]] = ()


def _constant(*counts: int) -> list[dict[str, Any]]:
    return [{"num_assistant_tokens": n, "num_assistant_tokens_schedule": "constant"} for n in counts]


# transformers' defaults are tried too: 20 assistant tokens, cut where its draft model is unsure.
_HEURISTIC = [{"num_assistant_tokens": 5, "num_assistant_tokens_schedule": "heuristic"}]
MODES: dict[str, Mode] = {
    "plain": Mode(None, theirs=({},)),
    "draft-model": Mode("draft-model", "draft_model", 3, [{}, *_constant(2, 3, 5), *_HEURISTIC]),
    "n-gram": Mode("n-gram", None, 3, [{"prompt_lookup_num_tokens": n} for n in (2, 3, 5, 10)]),
    "early-exit": Mode(
        "early-exit",
        None,
        3,
        [{"assistant_early_exit": part} | rest for part in (4, 2) for rest in ({}, *_constant(2, 3, 5))],
    ),
    "eagle3": Mode("eagle3", "drafter", 3),
}


class Sizes(Protocol):
    """The settings that matter here; see ``bench_decoding_settings.DecodingBenchConfig``."""

    target: Path
    draft_model: Path | None
    drafter: Path | None
    dtype: Any
    compile: bool
    draft_tokens: int | None
    layers: int | None
    widen: int


class OurRun:
    """A decoder of VocabForge."""

    def __init__(self, decoder: Decoder, settings: dict[str, Any], compiler: PassCompiler | None) -> None:
        self.settings, self.parts = settings, dict[str, float]()
        self._decoder, self._compiler = decoder, compiler

    @property
    def compile_s(self) -> float:
        return 0.0 if self._compiler is None else self._compiler.seconds

    def generate(self, prompt: Sequence[int], new: int) -> Done:
        made = self._decoder.generate(prompt, max_new_tokens=new, stop_ids=())
        for part, seconds in made.timings.items():
            self.parts[part] = self.parts.get(part, 0.0) + seconds
        return Done(made.token_ids, made.target_forwards)


class OurSide:
    """VocabForge's models, loaded once."""

    def __init__(self, config: Sizes) -> None:
        self.config = config
        self._narrow = load_target(config.target, dtype=DTYPES[config.dtype])
        self.model = self._narrow if config.widen == 1 else widen_target(self._narrow, config.widen)

    def start(self, name: str) -> OurRun:
        """The decoder of a mode."""
        mode, config = MODES[name], self.config
        compiler = compile_passes() if config.compile else None
        if mode.proposer is None:
            return OurRun(Decoder(self.model, wrap=compiler), {}, compiler)
        tokens = config.draft_tokens or mode.tokens or 1
        settings: dict[str, Any] = {"draft_tokens": tokens}
        layers = None
        if mode.proposer == "early-exit" and config.layers is not None:
            layers = settings["layers"] = config.layers
        options = DraftOptions(tree="chain", depth=tokens - 1, layers=layers)
        parts = ProposerParts(self.model, self._drafter(mode), None, options)
        proposer = make_proposer(mode.proposer, parts)
        return OurRun(Decoder(self.model, proposer, wrap=compiler), settings, compiler)

    def _drafter(self, mode: Mode) -> Any:
        config, model = self.config, self.model
        if mode.needs == "draft_model" and config.draft_model is not None:
            return load_target(config.draft_model, dtype=model.dtype)
        if mode.needs == "drafter" and config.drafter is not None:
            tensors = TargetTensors(self._narrow.embedding, self._narrow.lm_head_weight)
            drafter, _ = load_drafter(config.drafter, tensors, config.target)
            if drafter.kind != mode.proposer:
                raise UsageError(
                    f"the mode {mode.proposer} drafts with another kind of drafter",
                    got=drafter.kind,
                    expected=mode.proposer,
                    source=config.drafter,
                )
            return (
                drafter
                if config.widen == 1
                else widen_drafter(cast(Eagle3Drafter, drafter), model, config.widen)
            )
        return None


class TheirRun:
    """transformers' ``generate`` with one set of options.

    Args:
        model: the target.
        assistant: a draft model, the target itself for an early exit, or None.
        settings: of generation; those of the assistant go to its own configuration, which keeps what its schedule
            and its confidence threshold learn from call to call.
        count: passes of the target so far.
    """

    def __init__(
        self, model: Any, assistant: Any | None, settings: Mapping[str, Any], count: Callable[[], int]
    ) -> None:
        from transformers import GenerationConfig

        self.settings, self.parts = dict(settings), dict[str, float]()
        self._model, self._assistant, self._count = model, assistant, count
        drafting = {key: value for key, value in settings.items() if key.startswith("num_assistant")}
        self._options = {key: value for key, value in settings.items() if key not in drafting}
        self._config, self._drafting = GenerationConfig(), GenerationConfig(**drafting)
        if assistant is not None and assistant is not model:
            self._options["assistant_model"] = assistant

    @property
    def compile_s(self) -> float:
        return 0.0

    def generate(self, prompt: Sequence[int], new: int) -> Done:
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
        return Done(output[0, len(prompt) :].tolist(), self._count() - before)


class TheirSide:
    """transformers' models, loaded once."""

    def __init__(self, config: Sizes) -> None:
        try:
            import transformers
            from transformers import AutoModelForCausalLM
        except ImportError as error:
            raise UsageError(
                "the comparison needs transformers",
                got=error,
                remedy="pip install 'vocabforge[train]'",
            ) from error
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        self.versions = {"transformers": transformers.__version__}
        dtype = DTYPES[config.dtype]
        self.model = AutoModelForCausalLM.from_pretrained(config.target, dtype=dtype).eval()
        self.layers = int(self.model.config.num_hidden_layers)
        self.assistant = None
        if config.draft_model is not None:
            self.assistant = AutoModelForCausalLM.from_pretrained(config.draft_model, dtype=dtype).eval()
        self._forwards = 0
        self.model.register_forward_pre_hook(self._count)

    def _count(self, model: Any, inputs: Any) -> None:
        # An early exit drafts with the same module, cut short.
        self._forwards += int(model.config.num_hidden_layers == self.layers)

    def candidates(self, name: str) -> list[TheirRun]:
        """The settings of a mode that are worth trying."""
        found = []
        for settings in MODES[name].theirs:
            assistant = self.assistant if name == "draft-model" else None
            if "assistant_early_exit" in settings:
                exit_at = max(1, self.layers // settings["assistant_early_exit"])
                settings, assistant = {**settings, "assistant_early_exit": exit_at}, self.model
            found.append(TheirRun(self.model, assistant, settings, lambda: self._forwards))
        return found


def ours(config: Sizes) -> OurSide:
    """VocabForge's side."""
    return OurSide(config)


def theirs(config: Sizes) -> TheirSide:
    """transformers' side."""
    return TheirSide(config)
