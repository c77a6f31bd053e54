"""What ``vocabforge bench decoding`` compares, and VocabForge's side of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from ..core.errors import UsageError
from ..corpus.tokenizer import load_tokenizer
from ..decode.compiled import PassCompiler, compile_passes
from ..decode.engine import Decoder
from ..decode.method_spec import MethodSpec
from ..decode.proposers import FOREIGN, ProposerParts, make_proposer
from ..decode.verifiers import chosen_verifier
from ..export.formats import load_drafter
from ..models.drafter_io import TargetTensors
from ..models.eagle3 import Eagle3Drafter
from ..models.lean import LeanModel, load_target
from ..models.target_load import DTYPES
from ..vocab.bridge import Bridge, make_bridge
from .widen import widen_drafter, widen_target


@dataclass(frozen=True)
class Done:
    """One prompt continued.

    Attributes:
        token_ids: new tokens.
        forwards: passes of the target over all its layers.
        counts: what drafting counted, by name.
    """

    token_ids: list[int]
    forwards: int
    counts: Mapping[str, int] = field(default_factory=dict)


class Run(Protocol):
    """One side of a mode with its settings.

    Attributes:
        settings: as its own documentation names them.
        parts: seconds by part, of all that it generated so far; empty where it does not tell.
    """

    settings: dict[str, Any]
    parts: dict[str, float]

    @property
    def compile_s(self) -> float:
        """Seconds spent compiling so far."""
        ...

    def generate(self, prompt: Sequence[int], new: int) -> Done:
        """Continue a prompt by ``new`` tokens; no stop token ends it."""
        ...


@dataclass(frozen=True)
class Mode:
    """A way of decoding.

    Attributes:
        proposer: VocabForge's; None decodes plainly.
        needs: the setting whose folder it needs.
        tokens: draft tokens of VocabForge's chain; None takes the proposer's default.
        theirs: settings of ``generate`` that are tried; none where transformers has no such mode.
        against: modes of one value share transformers' side; None is a side of its own.
    """

    proposer: str | None
    needs: str | None = None
    tokens: int | None = None
    theirs: Sequence[Mapping[str, Any]] = ()
    against: str | None = None


def _constant(*counts: int) -> list[dict[str, Any]]:
    return [{"num_assistant_tokens": n, "num_assistant_tokens_schedule": "constant"} for n in counts]


# transformers' defaults are tried too: 20 assistant tokens, cut where its draft model is unsure.
_HEURISTIC = [{"num_assistant_tokens": 5, "num_assistant_tokens_schedule": "heuristic"}]
# Greedy, transformers has one way for two vocabularies: texts are encoded anew. 10 tokens back is its default.
_NEAR = [{**_constant(5)[0], "target_lookbehind": 5, "assistant_lookbehind": 5}]
_SURE = [{**_constant(5)[0], "assistant_confidence_threshold": 0.0}]  # never cut
_TEXTS = [{}, *_constant(2, 3, 5, 8), *_HEURISTIC, *_NEAR, *_SURE]
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
    **{name: Mode(name, "foreign_drafter", None, _TEXTS, "texts") for name in FOREIGN},
}


class Sizes(Protocol):
    """The settings that matter here; see ``bench_decoding_settings.DecodingBenchConfig``."""

    target: Path
    draft_model: Path | None
    drafter: Path | None
    foreign_drafter: Path | None
    dtype: Any
    compile: bool
    temperature: float
    draft_tokens: int | dict[str, int] | None
    layers: int | None
    widen: int
    verifier: str | None


class OurRun:
    """A decoder of VocabForge; above temperature 0 every prompt has the same seed in every round."""

    def __init__(
        self,
        decoder: Decoder,
        settings: dict[str, Any],
        compiler: PassCompiler | None,
        temperature: float = 0.0,
    ) -> None:
        self.settings, self.parts = settings, dict[str, float]()
        self._decoder, self._compiler, self._temperature = decoder, compiler, temperature

    @property
    def compile_s(self) -> float:
        """Seconds that compiling took so far; 0 without it."""
        return 0.0 if self._compiler is None else self._compiler.seconds

    def generate(self, prompt: Sequence[int], new: int) -> Done:
        """See :meth:`Run.generate`; its seconds by part are added up."""
        made = self._decoder.generate(prompt, max_new_tokens=new, stop_ids=(), temperature=self._temperature)
        for part, seconds in made.timings.items():
            self.parts[part] = self.parts.get(part, 0.0) + seconds
        return Done(made.token_ids, made.target_forwards, made.counts)


class OurSide:
    """VocabForge's models, loaded once."""

    def __init__(self, config: Sizes) -> None:
        self.config = config
        self._narrow = load_target(config.target, dtype=DTYPES[config.dtype])
        self.model = self._narrow if config.widen == 1 else widen_target(self._narrow, config.widen)
        self._other: LeanModel | None = None

    def start(self, name: str) -> OurRun:
        """The decoder of a mode."""
        mode, config = MODES[name], self.config
        compiler = compile_passes() if config.compile else None
        if mode.proposer is None:
            return OurRun(Decoder(self.model, wrap=compiler), {}, compiler, config.temperature)
        tokens = _tokens(name, config.draft_tokens)
        settings: dict[str, Any] = {} if tokens is None else {"draft_tokens": tokens}
        layers = None
        if mode.proposer == "early-exit" and config.layers is not None:
            layers = settings["layers"] = config.layers
        options = MethodSpec(
            tree="chain",
            # Only TLI needs to be told; SLRS always draws, SLEM never.
            draft_sampling=name == "tli" and config.temperature > 0,
            depth=None if tokens is None else tokens - 1,
            exit_layers=layers,
        )
        parts = ProposerParts(self.model, self._drafter(mode), None, options, self._bridge(mode))
        proposer = make_proposer(mode.proposer, parts)
        if tokens is None:
            settings["levels"] = proposer.plan.levels
        if config.verifier is not None:
            found = chosen_verifier(config.verifier, sampled=config.temperature > 0)
            settings |= {"verifier": config.verifier, "lossless": found.lossless}
        decoder = Decoder(self.model, proposer, verifier=config.verifier, wrap=compiler)
        return OurRun(decoder, settings, compiler, config.temperature)

    def _bridge(self, mode: Mode) -> Bridge | None:
        """Between the tokenizers, where the mode drafts over another vocabulary."""
        if mode.proposer not in FOREIGN or self.config.foreign_drafter is None:
            return None
        tokenizers = load_tokenizer(self.config.target), load_tokenizer(self.config.foreign_drafter)
        return make_bridge(*tokenizers, (self.model.config.vocab_size, self._foreign().config.vocab_size))

    def _foreign(self) -> LeanModel:
        """The draft model of another vocabulary, loaded once."""
        if self._other is None:
            assert self.config.foreign_drafter is not None
            self._other = load_target(self.config.foreign_drafter, dtype=self.model.dtype)
        return self._other

    def _drafter(self, mode: Mode) -> Any:
        config, model = self.config, self.model
        if mode.needs == "draft_model" and config.draft_model is not None:
            return load_target(config.draft_model, dtype=model.dtype)
        if mode.needs == "foreign_drafter":
            return self._foreign()
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


def _tokens(name: str, wanted: int | Mapping[str, int] | None) -> int | None:
    """Draft tokens of a mode's chain; None takes the proposer's default."""
    own = wanted.get(name) if isinstance(wanted, Mapping) else wanted
    return own or MODES[name].tokens
