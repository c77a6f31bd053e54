"""The target in training: any Hugging Face causal LM, which provides features and hidden states.

Decoding uses the lean model (``models/lean/model.py``); tests check that the two agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import DataError, MismatchError, UsageError
from ...core.progress import ProgressBar
from ..checkpoint import checkpoint_files, fill, read_headers
from .documents import document_spans, gather, plan_passes, restarts, scatter
from .load import Placement, auto_class, load_causal_lm, read_target_config
from .logits import LogitFacts, LogitTransform
from .stack import Ends, find_ends, find_stack
from .text_config import text_config


@dataclass(frozen=True)
class TargetStates:
    """Outputs of a target pass used by the drafter.

    Attributes:
        features: (B, T, n_aux * H) outputs of the auxiliary layers, concatenated.
        hidden: (B, T, H) hidden states after the final norm, the input of the LM head.
        facts: (B, T) statistics of the logits of ``hidden``, if requested.
    """

    features: Tensor
    hidden: Tensor
    facts: LogitFacts | None = None


def default_aux_layers(num_layers: int) -> tuple[int, ...]:
    """Return EAGLE-3's auxiliary layers (0-based outputs): 1, n//2 - 1, n - 4.

    Shallow targets use layer 1, the middle layer and the second to last, or all layers except the last:
    servers cannot read the output of the last layer, and capture each layer only once.
    """
    if num_layers >= 8:
        return (1, num_layers // 2 - 1, num_layers - 4)
    if num_layers >= 5:
        return (1, num_layers // 2, num_layers - 2)
    return tuple(range(max(num_layers - 1, 1)))


class HFTarget(Ends):
    """A frozen Hugging Face causal LM.

    Args:
        aux_layers: decoder layers (0-based) whose outputs are the features.
        source: origin of the model, for error messages.
        placement: placement of the weights; None for the model's single device.

    Attributes:
        device: device of ``embedding``, ``head_weight`` and captured states.
        spread: weights may be on other devices (a device map, or tensor parallelism).

    Raises:
        DataError: the model has no list of decoder layers, its logits are not ``head(hidden)``, or the
            outputs of its layers differ from the hidden states that it reports.
        MismatchError: an auxiliary layer does not exist.
    """

    def __init__(
        self,
        model: Any,
        aux_layers: Sequence[int] | None = None,
        source: object = None,
        *,
        placement: Placement | None = None,
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.source = source
        self.head, self.head_weight, self.embedding, self.device = find_ends(model, placement, source)
        self.backbone, layers = find_stack(model, source)
        self.transform = LogitTransform.of(model.config.get_text_config(decoder=True))
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
        self.tensor_parallel = placement is not None and placement.tp_plan is not None
        self.spread = placement is not None and placement.spread
        check_target(self)

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        aux_layers: Sequence[int] | None = None,
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
        device_map: str | Mapping[str, Any] | None = None,
        tp_plan: str | None = None,
    ) -> HFTarget:
        """Load a local Hugging Face folder without remote code.

        Args:
            dtype: a dtype or its name; ``auto`` is the checkpoint's dtype on CUDA and fp32 on a CPU.
            device, device_map, tp_plan: see :class:`~vocabforge.models.target.load.Placement`. With a
                ``tp_plan``, every process must capture the same rows.

        Raises:
            DataError: the folder has no loadable model.
            UsageError: the placement does not suit how the processes were launched.
        """
        placement = Placement(torch.device(device), device_map, tp_plan)
        with ProgressBar(f"load {path.name}"):
            return cls(load_causal_lm(path, dtype, placement), aux_layers, source=path, placement=placement)

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return len(self._layers)

    @torch.no_grad()
    def capture(self, input_ids: Tensor, position: Tensor, document: Tensor) -> TargetStates:
        """Run the target over packed rows; a token attends only to its own document.

        The documents are run in a few causal passes without masks, so memory is linear in the number of
        tokens. The passes depend on the given rows; a row captured alone always gives bitwise equal results.
        States of padding are zeros. The target computes in its own dtype, regardless of autocast.

        Args:
            input_ids: (B, T) token ids.
            position: (B, T) positions, restarting at 0 in each document.
            document: (B, T) document number in its row, 0 for padding.

        Raises:
            DataError: positions that do not restart at 0 in each document.
        """
        spans = document_spans(document)
        if not restarts(position, spans):
            raise DataError(
                "positions of packed rows must run 0, 1, 2, … in each document",
                got="positions that begin or step otherwise",
                source=self.source,
                remedy="prepare the data again",
            )
        shape, home = input_ids.shape, input_ids.device
        features = torch.zeros(*shape, len(self.aux_layers) * self.hidden_size, dtype=self.dtype, device=home)
        hidden = torch.zeros(*shape, self.hidden_size, dtype=self.dtype, device=home)
        for group in plan_passes(spans):
            kept, last = self.forward(gather(input_ids, group), self.aux_layers)
            fused = torch.cat([kept[i].to(home) for i in self.aux_layers], dim=-1)  # (G, L, n_aux * H)
            scatter(features, fused, group)
            scatter(hidden, last.to(home), group)
        return TargetStates(features, hidden)

    def forward(self, input_ids: Tensor, layers: Iterable[int]) -> tuple[dict[int, Tensor], Tensor]:
        """Run a causal pass over (B, T) ids.

        Returns:
            the outputs of ``layers``, and the states after the final norm, (B, T, H).
        """
        kept: dict[int, Tensor] = {}

        def keep(index: int) -> Any:
            def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
                kept[index] = output[0] if isinstance(output, tuple) else output

            return hook

        handles = [self._layers[i].register_forward_hook(keep(i)) for i in set(layers)]
        try:
            with torch.autocast(self.device.type, enabled=False):
                output = self.backbone(input_ids=input_ids.to(self.device), use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        return kept, output.last_hidden_state


def check_tokenizer_fits(
    tokenizer_size: int,
    rows: int,
    *,
    tokenizer: object,
    target: object,
    role: str = "target",
    option: str = "--tokenizer",
) -> None:
    """Check that the target has a row for every token id; more rows than ids (padding) are normal.

    Args:
        target: the model's folder.
        role: what the model is used as, for the message.
        option: the command-line option that sets its tokenizer.

    Raises:
        MismatchError: the tokenizer's highest id has no row.
    """
    if tokenizer_size > rows:
        raise MismatchError(
            f"the tokenizer does not match the {role}",
            got=f"{tokenizer_size:,} token ids in {tokenizer}",
            expected=f"at most {rows:,}, the rows of the LM head of {target}",
            remedy=f"give the {role}'s own tokenizer with {option}",
        )


def check_row_length(config: Mapping[str, Any], length: int, *, source: object) -> None:
    """Check that packed rows of ``length`` tokens fit the target's context.

    A sliding window does not limit the length, since attention respects it.

    Raises:
        UsageError: they do not fit.
    """
    limit = getattr(text_config(config, source), "max_position_embeddings", None)
    if limit is not None and length > int(limit):
        raise UsageError(
            "data.sequence_length is longer than the target's context",
            got=length,
            expected=f"at most {limit}",
            source=source,
            remedy=f"data.sequence_length={limit}",
        )


_FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f")
_TOKENS = 8


@torch.no_grad()
def check_target(target: HFTarget) -> None:
    """Check that the logits and layer outputs used in training match those that the model reports.

    Raises:
        DataError: logits that are not LM head weight x hidden states (softcaps, scales, a bias), or auxiliary
            layers whose outputs differ from the hidden states that the model reports.
    """
    ids = torch.arange(min(_TOKENS, target.vocab_size), device=target.device)[None]  # (1, n)
    with torch.autocast(target.device.type, enabled=False):
        whole = target.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        kept, hidden = target.forward(ids, target.aux_layers)
        _check_head(target, whole.logits, hidden)
        _check_layers(target, whole.hidden_states, kept, hidden)


def _check_head(target: HFTarget, whole: Tensor, hidden: Tensor) -> None:
    ours = target.logits(hidden)
    if not close(ours, whole):
        difference = float((ours - whole.to(ours)).abs().max())
        raise DataError(
            "this target changes its logits after the LM head in an unknown way",
            got=f"{type(target.model).__name__}: up to {difference:.3g} apart",
            expected="logits = softcap(scale x LM head x hidden states)",
            source=target.source,
            remedy=None if math.isfinite(difference) else "check the target's weights: its logits have NaN",
        )


def _check_layers(
    target: HFTarget, reported: tuple[Tensor, ...] | None, kept: Mapping[int, Tensor], hidden: Tensor
) -> None:
    """Check that ``hidden_states[i + 1]`` is the output of layer i; the last layer's may be final-normed."""
    count = target.num_layers
    problem = None
    if reported is None or len(reported) != count + 1:
        problem = f"{0 if reported is None else len(reported)} hidden states of {count} layers"
    else:
        wrong = [i for i in kept if not _is_output(target, i, kept[i], reported[i + 1], hidden)]
        without_embedding = all(close(kept[i], reported[i]) for i in kept)  # Mamba 2's numbering
        if wrong and not without_embedding:
            problem = f"layer {wrong[0]}'s output is not hidden_states[{wrong[0] + 1}]"
    if problem is not None:
        raise DataError(
            "the target's layers cannot be distinguished safely",
            got=f"{type(target.model).__name__}: {problem}",
            expected="hidden_states[i + 1] = output of layer i (0-based)",
            source=target.source,
        )


def _is_output(target: HFTarget, index: int, output: Tensor, reported: Tensor, hidden: Tensor) -> bool:
    if index < target.num_layers - 1:
        return close(output, reported)
    return close(final_norm(target, output), hidden) or close(output, hidden)


def final_norm(target: HFTarget, states: Tensor) -> Tensor:
    """Apply the norm between the last layer and the LM head to (..., H).

    Raises:
        DataError: the model has no norm under the usual names.
    """
    return _find_norm(target.backbone, target.source)(states).to(states.device)


def load_final_norm(path: Path, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """Load only the final norm; no other weight of the target is read.

    Raises:
        DataError: the model has no norm under the usual names.
    """
    import transformers

    auto = auto_class(path, read_target_config(path))
    with torch.device("meta"):
        config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
        model = auto.from_config(config, dtype=dtype)
    norm = _find_norm(find_stack(model, path).decoder, path)
    prefix = next(name for name, module in model.named_modules() if module is norm)
    stored = read_headers(checkpoint_files(path))
    norm = norm.to_empty(device=device).requires_grad_(False)
    own = {f"{prefix}.{name}": (tensor,) for name, tensor in norm.named_parameters()}
    if missing := sorted(own.keys() - stored.keys()):
        raise DataError(
            "the target's final norm is not stored under its name",
            got=f"no {missing[0]}",
            source=path,
            remedy="capture in this process: leave the server out",
        )
    fill({name: stored[name] for name in own}, own)
    return norm


def _find_norm(backbone: Any, source: object) -> nn.Module:
    for name in _FINAL_NORMS:
        norm = getattr(backbone, name, None)
        if norm is not None:
            return norm
    raise DataError(
        "the target has no final norm under the usual names",
        got=type(backbone).__name__,
        expected=" or ".join(_FINAL_NORMS),
        source=source,
    )


def close(tensor: Tensor, other: Tensor) -> bool:
    """Return whether tensors are equal up to rounding in the coarser dtype, relative to the largest value."""
    limit = 1e-2 if min(tensor.element_size(), other.element_size()) < 4 else 1e-3
    other = other.to(tensor.device).float()
    return bool((tensor.float() - other).abs().max() <= limit * other.abs().max())
