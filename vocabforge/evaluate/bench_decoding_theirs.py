"""transformers' side of ``vocabforge bench decoding``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..core.errors import UsageError
from ..decode.proposers import FOREIGN
from ..models.target_load import DTYPES
from .bench_decoding_modes import MODES, Done, Sizes

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
