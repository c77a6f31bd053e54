"""What ``vocabforge bench decoding`` compares, and VocabForge's side of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from ...core.errors import UsageError
from ...corpus.tokenizer.tokenizer import load_tokenizer
from ...decode.accelerate.compiled import PassCompiler, compile_passes
from ...decode.build.spec import MethodSpec
from ...decode.engine import Decoder
from ...decode.proposers.registry import FOREIGN, ProposerParts, make_proposer
from ...decode.verify.registry import chosen_verifier
from ...export.registry import load_drafter
from ...models.checkpoint import EMBEDDING, LM_HEAD
from ...models.drafters.eagle3 import Eagle3Drafter
from ...models.drafters.io import TargetTensors
from ...models.lean.model import LeanModel, load_target
from ...models.target.load import DTYPES
from ...vocab.overlap.bridge import Bridge, make_bridge

if TYPE_CHECKING:
    from .settings import DecodingBenchConfig

# Settings that transformers reads from the assistant's own configuration.
_DRAFTING = ("num_assistant", "assistant_confidence", "assistant_lookbehind", "target_lookbehind")


class TheirRun:
    """transformers' ``generate`` with one set of options.

    Args:
        model: the target.
        assistant: a draft model, the target itself for an early exit, or None.
        settings: of generation; those of the assistant go to its own configuration, which keeps what its schedule
            and its confidence threshold learn from call to call.
        count: passes of the target so far.
        tokenizers: ``tokenizer`` and ``assistant_tokenizer``, where the two have different ones.
    """

    def __init__(
        self,
        model: Any,
        assistant: Any | None,
        settings: Mapping[str, Any],
        count: Callable[[], int],
        tokenizers: Mapping[str, Any] | None = None,
    ) -> None:
        from transformers import GenerationConfig

        self.settings, self.parts = dict(settings), dict[str, float]()
        self._model, self._assistant, self._count = model, assistant, count
        drafting = {key: value for key, value in settings.items() if key.startswith(_DRAFTING)}
        self._options = {key: value for key, value in settings.items() if key not in drafting}
        self._config, self._drafting = GenerationConfig(), GenerationConfig(**drafting)
        if assistant is not None and assistant is not model:
            self._options["assistant_model"] = assistant
            self._options.update(tokenizers or {})

    @property
    def compile_s(self) -> float:
        """Nothing is compiled."""
        return 0.0

    def generate(self, prompt: Sequence[int], new: int) -> Done:
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
        return Done(output[0, len(prompt) :].tolist(), self._count() - before)


class TheirSide:
    """transformers' models, loaded once."""

    def __init__(self, config: DecodingBenchConfig) -> None:
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
        self.model = AutoModelForCausalLM.from_pretrained(
            config.target, dtype=dtype, trust_remote_code=False
        ).eval()
        self.layers = int(self.model.config.num_hidden_layers)
        self.assistant = None
        if config.draft_model is not None:
            self.assistant = AutoModelForCausalLM.from_pretrained(
                config.draft_model, dtype=dtype, trust_remote_code=False
            ).eval()
        self.foreign, self.tokenizers = None, dict[str, Any]()
        if config.foreign_drafter is not None:
            from transformers import PreTrainedTokenizerFast

            read = PreTrainedTokenizerFast.from_pretrained
            self.foreign = AutoModelForCausalLM.from_pretrained(
                config.foreign_drafter, dtype=dtype, trust_remote_code=False
            ).eval()
            self.tokenizers["tokenizer"] = read(config.target)
            self.tokenizers["assistant_tokenizer"] = read(config.foreign_drafter)
        self._forwards = 0
        self.model.register_forward_pre_hook(self._count)

    def _count(self, model: Any, inputs: Any) -> None:
        # An early exit drafts with the same module, cut short.
        self._forwards += int(model.config.num_hidden_layers == self.layers)

    def candidates(self, name: str) -> list[TheirRun]:
        """The settings of a mode that are worth trying."""
        found = []
        for settings in MODES[name].theirs:
            foreign = name in FOREIGN
            assistant = self.foreign if foreign else self.assistant if name == "draft-model" else None
            if "assistant_early_exit" in settings:
                exit_at = max(1, self.layers // settings["assistant_early_exit"])
                settings, assistant = {**settings, "assistant_early_exit": exit_at}, self.model
            tokenizers = self.tokenizers if foreign else None
            found.append(TheirRun(self.model, assistant, settings, lambda: self._forwards, tokenizers))
        return found


_JOINED = ("fc.weight", "input_norm.weight", "q_proj.weight", "k_proj.weight", "v_proj.weight")


@torch.no_grad()
def widen_target(model: LeanModel, times: int) -> LeanModel:
    """A lean target ``times`` as wide, with an LM head of its own."""
    c = model.config
    config = replace(
        c,
        hidden_size=times * c.hidden_size,
        intermediate_size=times * c.intermediate_size,
        num_heads=times * c.num_heads,
        num_kv_heads=times * c.num_kv_heads,
        tie_word_embeddings=False,
    )
    wide = LeanModel(config, dtype=model.dtype, device=model.device, own_lm_head=True)
    narrow = {name: parts[0] for name, parts in model.checkpoint_views().items()}
    narrow[LM_HEAD] = model.lm_head_weight
    for name, parts in wide.checkpoint_views().items():
        for part in parts:
            part.copy_(_repeated(narrow[name], part.shape, divided=name != EMBEDDING))
    return wide


@torch.no_grad()
def widen_drafter(drafter: Eagle3Drafter, target: LeanModel, times: int) -> Eagle3Drafter:
    """An EAGLE-3 drafter ``times`` as wide, over a target widened by :func:`widen_target`."""
    c = drafter.config
    config = replace(
        c,
        hidden_size=times * c.hidden_size,
        intermediate_size=times * c.intermediate_size,
        num_heads=times * c.num_heads,
        num_kv_heads=times * c.num_kv_heads,
    )
    ids = drafter.target_ids if drafter.has_own_head else None
    wide = Eagle3Drafter(config, target.embedding, target.lm_head_weight, ids).to(target.device, target.dtype)
    narrow = drafter.state_dict()
    for name, tensor in wide.state_dict().items():
        # These read several vectors of the residual stream's width, one after the other.
        joined = name.endswith(_JOINED)
        parts = narrow[name].split(c.hidden_size, -1) if joined else (narrow[name],)
        shape = (*tensor.shape[:-1], tensor.shape[-1] // len(parts))
        tensor.copy_(torch.cat([_repeated(part, shape, divided=True) for part in parts], -1))
    return wide.eval()


def _repeated(tensor: Tensor, shape: tuple[int, ...], *, divided: bool) -> Tensor:
    """A norm (n,) or a matrix (out, in) repeated to ``shape``; a matrix is divided by its input's repetitions."""
    times = [wide // narrow for wide, narrow in zip(shape, tensor.shape)]
    wide = tensor.repeat(times)
    return wide / times[-1] if divided and tensor.dim() == 2 else wide


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


@dataclass(frozen=True)
class BenchMode:
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
MODES: dict[str, BenchMode] = {
    "plain": BenchMode(None, theirs=({},)),
    "draft-model": BenchMode("draft-model", "draft_model", 3, [{}, *_constant(2, 3, 5), *_HEURISTIC]),
    "n-gram": BenchMode("n-gram", None, 3, [{"prompt_lookup_num_tokens": n} for n in (2, 3, 5, 10)]),
    "early-exit": BenchMode(
        "early-exit",
        None,
        3,
        [{"assistant_early_exit": part} | rest for part in (4, 2) for rest in ({}, *_constant(2, 3, 5))],
    ),
    "eagle3": BenchMode("eagle3", "drafter", 3),
    **{name: BenchMode(name, "foreign_drafter", None, _TEXTS, "texts") for name in FOREIGN},
}


class OurRun:
    """A decoder of VocabForge; above temperature 0 every prompt has the same seed in every round.

    Attributes:
        settings: as its own documentation names them.
        parts: seconds by part, of all that it generated so far.
    """

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
        """Continue a prompt by ``new`` tokens; no stop token ends it."""
        made = self._decoder.generate(prompt, max_new_tokens=new, stop_ids=(), temperature=self._temperature)
        for part, seconds in made.timings.items():
            self.parts[part] = self.parts.get(part, 0.0) + seconds
        return Done(made.token_ids, made.target_forwards, made.counts)


BenchRun = TheirRun | OurRun


class OurSide:
    """VocabForge's models, loaded once."""

    def __init__(self, config: DecodingBenchConfig) -> None:
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

    def _bridge(self, mode: BenchMode) -> Bridge | None:
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

    def _drafter(self, mode: BenchMode) -> Any:
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
