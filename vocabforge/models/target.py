"""The target as training sees it: any Hugging Face causal LM, giving features and hidden states.

Decoding uses the lean model (``lean.py``); tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import DataError, MismatchError
from ..core.files import read_json
from .checkpoint import checkpoint_files, read_headers

# Settings of Hugging Face configurations that change logits after the LM head, unless they are None or 1.
_LOGIT_SETTINGS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")


@dataclass(frozen=True)
class TargetStates:
    """What one pass of the target leaves for the drafter.

    Attributes:
        features: (B, T, n_aux * H) outputs of the auxiliary layers, concatenated.
        hidden: (B, T, H) hidden states after the final norm, as the LM head reads them.
    """

    features: Tensor
    hidden: Tensor


def default_aux_layers(num_layers: int) -> tuple[int, int, int]:
    """EAGLE-3's auxiliary layers (0-based outputs): 1, n//2 - 1, n - 4.

    Below 8 layers that rule repeats or reverses layers, so shallow targets take layer 1, the middle one and
    the last but one (servers cannot read the last layer's output).
    """
    if num_layers >= 8:
        return (1, num_layers // 2 - 1, num_layers - 4)
    last = num_layers - 1
    return (min(1, last), min(num_layers // 2, last), max(last - 1, 0))


class HFTarget:
    """A frozen Hugging Face causal LM.

    Args:
        model: the loaded model.
        aux_layers: decoder layers (0-based) whose outputs are the features.
        source: where it was loaded from, for error messages.

    Raises:
        DataError: the model has no list of decoder layers, or its logits are not ``head(hidden)``.
        MismatchError: an auxiliary layer that the model has not.
    """

    def __init__(self, model: Any, aux_layers: Sequence[int] | None = None, source: object = None) -> None:
        self.model = model.eval().requires_grad_(False)
        self.source = source
        self.backbone: nn.Module = model.get_decoder()
        self.head: Any = model.get_output_embeddings()
        layers = getattr(self.backbone, "layers", None)
        if layers is None or self.head is None:
            raise DataError(
                "the target has no decoder layers or no LM head where they were looked for",
                got=type(model).__name__,
                expected="a causal language model with .layers and output embeddings",
                source=source,
            )
        self.aux_layers = tuple(aux_layers) if aux_layers else default_aux_layers(len(layers))
        bad = [i for i in self.aux_layers if not 0 <= i < len(layers)]
        if bad:
            raise MismatchError(
                "the target has no such layers",
                got=f"auxiliary layers {bad}",
                expected=f"0 to {len(layers) - 1}",
                source=source,
            )
        self._layers: Any = layers
        self._check_head()

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        aux_layers: Sequence[int] | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> HFTarget:
        """Load a local Hugging Face folder; remote code stays off.

        Raises:
            DataError: the folder holds no loadable model.
        """
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging as hf_logging

        read_target_config(path)
        read_headers(checkpoint_files(path))  # names a missing or damaged file, which transformers does not
        hf_logging.disable_progress_bar()
        try:
            model, info = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, trust_remote_code=False, use_safetensors=True, output_loading_info=True
            )
        except Exception as error:  # transformers raises many kinds; all mean the same to a user
            raise DataError(
                "the target cannot be loaded", got=f"{type(error).__name__}: {error}", source=path
            ) from error
        missing = [key for key in info["missing_keys"] if "rotary" not in key]
        if missing:
            raise DataError(
                "the target's checkpoint lacks weights",
                got=f"{len(missing)} missing, first: {', '.join(sorted(missing)[:3])}",
                source=path,
                remedy="the checkpoint may be incomplete; fetch it again",
            )
        return cls(model.to(device), aux_layers, source=path)

    @property
    def hidden_size(self) -> int:
        return int(self.head.weight.shape[1])

    @property
    def vocab_size(self) -> int:
        """Rows of the LM head, padding rows included."""
        return int(self.head.weight.shape[0])

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def embedding(self) -> Tensor:
        """Input embedding weight (V, H)."""
        return self.model.get_input_embeddings().weight

    @property
    def head_weight(self) -> Tensor:
        """LM head weight (V, H)."""
        return self.head.weight

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (..., V)."""
        return self.head(hidden)

    @torch.no_grad()
    def capture(self, input_ids: Tensor, position: Tensor, document: Tensor) -> TargetStates:
        """One pass over packed rows; a token attends only to its own document.

        Args:
            input_ids: (B, T) token ids.
            position: (B, T) positions, restarting at 0 in each document.
            document: (B, T) document number in its row, 0 for padding.
        """
        kept: dict[int, Tensor] = {}

        def keep(index: int) -> Any:
            def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
                kept[index] = output[0] if isinstance(output, tuple) else output

            return hook

        handles = [self._layers[i].register_forward_hook(keep(i)) for i in set(self.aux_layers)]
        try:
            output = self.backbone(
                input_ids=input_ids,
                position_ids=position,
                attention_mask=_additive(document_mask(document), self.head_weight.dtype),
                use_cache=False,
            )
        finally:
            for handle in handles:
                handle.remove()
        features = torch.cat([kept[i] for i in self.aux_layers], dim=-1)  # (B, T, n_aux * H)
        return TargetStates(features, output.last_hidden_state)

    @torch.no_grad()
    def _check_head(self) -> None:
        """Softcaps and logit scales between hidden states and logits would spoil the teacher: refuse them."""
        config = self.model.config
        named = [
            f"{key} {value}"
            for key in _LOGIT_SETTINGS
            if (value := getattr(config, key, None)) not in (None, 1)
        ]
        ids = torch.arange(min(4, self.vocab_size), device=self.head_weight.device)[None]
        whole = self.model(input_ids=ids, use_cache=False).logits.float()
        ours = self.logits(self.backbone(input_ids=ids, use_cache=False).last_hidden_state).float()
        difference = float((whole - ours).abs().max())
        # The settings count by themselves: a softcap hardly shows on small logits.
        if named or not difference <= 1e-3 * float(whole.abs().max()):
            raise DataError(
                "this target changes its logits after the LM head, which is not supported",
                got=f"{type(self.model).__name__}: {', '.join(named) or f'up to {difference:.3g} apart'}",
                expected="logits = LM head (hidden states)",
                source=self.source,
            )


def document_mask(document: Tensor) -> Tensor:
    """Causal attention inside documents: (B, T) document numbers -> bool (B, 1, T, T), True = visible.

    Padding (document 0) sees itself only, so that no row of the softmax is empty.
    """
    length = document.shape[1]
    same = document[:, :, None] == document[:, None, :]  # (B, T, T)
    causal = torch.ones(length, length, dtype=torch.bool, device=document.device).tril()
    real = (document != 0)[:, :, None]
    itself = torch.eye(length, dtype=torch.bool, device=document.device)
    return ((same & causal & real) | itself)[:, None]


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where True, else the lowest number: eager attention adds its mask, and would add a boolean as 1."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def read_target_config(path: Path) -> dict[str, Any]:
    """The target's ``config.json`` as a dictionary.

    Raises:
        DataError: missing or unreadable.
    """
    file = path / "config.json"
    if not file.is_file():
        raise DataError(
            "there is no model here",
            got=f"{path} without config.json",
            expected="a Hugging Face model folder (config.json, *.safetensors, tokenizer.json)",
            remedy="check the path",
        )
    value = read_json(file, "target's config.json")
    if not isinstance(value, dict):
        raise DataError(
            "the target's config.json is not a JSON object", got=type(value).__name__, source=file
        )
    return value


def check_tokenizer_fits(tokenizer_size: int, rows: int, *, tokenizer: object, target: object) -> None:
    """Refuse a tokenizer with ids beyond the target's rows; more rows than ids (padding) are normal.

    Raises:
        MismatchError: the tokenizer's highest id has no row.
    """
    if tokenizer_size > rows:
        raise MismatchError(
            "the tokenizer does not match the target",
            got=f"{tokenizer_size:,} token ids in {tokenizer}",
            expected=f"at most {rows:,}, the rows of the LM head of {target}",
            remedy="give the target's own tokenizer with --tokenizer",
        )
