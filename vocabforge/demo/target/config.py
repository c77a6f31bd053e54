"""Configuration of a small target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from ...core.config import Positive, Size, StrictModel, TokenizerPath
from ...train.config import OptimConfig

# Settings that do not affect the weights, and paths: files are compared by content.
_APART = {"train", "heldout", "tokenizer", "threads", "device", "checkpoint_every"}

_LATER = ("layer_dropout", "early_exit_loss", "early_exit_every", "weights")


class TargetTrainingConfig(StrictModel):
    """Sizes and training of a Llama with tied embeddings.

    Attributes:
        rows: V, rows of the embedding; None: the number of tokenizer entries.
        hidden_size: d, width of the hidden states.
        intermediate_size: width of the MLPs.
        num_layers: decoder layers.
        num_heads: attention heads.
        num_kv_heads: key and value heads.
        max_position_embeddings: longest sequence.
        rope_theta: base of the rotary embedding.
        sequence_length: T, tokens of a packed training row.
        init_std: standard deviation of the initial weights; narrow models learn faster with more than the
            usual 0.02.
        loss_on: predictions that count for the loss: those of assistant tokens, or of all tokens.
        weights: dtype of the written checkpoint; training and its figures are fp32.
        checkpoint_every: steps between checkpoints. Checkpoints and packed rows are stored in
            ``NAME.checkpoints`` next to the output until it is finished; the same call resumes from the
            newest checkpoint.
    """

    rows: Size | None = None
    hidden_size: Positive = 256
    intermediate_size: Positive = 384
    num_layers: Positive = 3
    num_heads: Positive = 4
    num_kv_heads: Positive = 2
    max_position_embeddings: Positive = 2048
    rope_theta: Annotated[float, Field(gt=1.0)] = 10_000.0
    sequence_length: Annotated[int, Field(ge=8)] = 256
    init_std: Annotated[float, Field(gt=0.0)] = 0.05
    loss_on: Literal["assistant", "all"] = "assistant"
    weights: Literal["fp32", "bf16"] = "fp32"
    checkpoint_every: Positive = 400
    optim: OptimConfig

    @model_validator(mode="after")
    def _sizes_go_together(self) -> TargetTrainingConfig:
        if self.sequence_length > self.max_position_embeddings:
            raise ValueError("sequence_length is longer than max_position_embeddings")
        if self.hidden_size % self.num_heads or self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} must be a multiple of num_heads {self.num_heads}, and that of "
                f"num_kv_heads {self.num_kv_heads}"
            )
        return self


class TinyTargetConfig(TargetTrainingConfig):
    """Configuration of a small target.

    Attributes:
        train: training conversations (JSONL), also the text for training a tokenizer.
        heldout: conversations for the held-out loss.
        tokenizer: folder of a tokenizer with chat template, copied into the target's folder; None trains one.
        vocab_size: entries of a trained tokenizer, including special tokens and 256 bytes.
        heldout_rows: maximum number of packed held-out rows, evenly spread; None: all of them.
        layer_dropout: probability of dropping the last layer in the last step; lower for earlier layers and
            steps (LayerSkip's p_max). 0 disables it.
        early_exit_loss: weight of the losses at earlier layers (LayerSkip's e_scale). 0: only the last layer.
        early_exit_every: a step includes every n-th of these losses, in turn.
        seed: seed of initial weights, row order and dropped layers.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        threads: CPU threads; None uses torch's default.
    """

    train: Path
    heldout: Path | tuple[Path, ...]
    tokenizer: TokenizerPath | None = None
    vocab_size: Annotated[Size, Field(ge=300)] = 4096
    heldout_rows: Positive | None = None
    layer_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    early_exit_loss: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    early_exit_every: Positive = 1
    seed: int = 0
    device: str = "cpu"
    threads: Positive | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> TinyTargetConfig:
        if self.tokenizer is not None and self.vocab_size != type(self).model_fields["vocab_size"].default:
            raise ValueError("vocab_size is that of a tokenizer that is made: with tokenizer, give rows")
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit newer settings at their defaults, so that older targets keep their identity."""
        fields = type(self).model_fields
        body: dict[str, Any] = dump(self)
        return {
            name: value
            for name, value in body.items()
            if name not in _LATER or getattr(self, name) != fields[name].default
        }

    @property
    def skips_layers(self) -> bool:
        """Whether LayerSkip's training is used."""
        return self.layer_dropout > 0 or self.early_exit_loss > 0

    @property
    def heldout_files(self) -> tuple[Path, ...]:
        """All held-out files."""
        return (self.heldout,) if isinstance(self.heldout, Path) else self.heldout

    def decides(self) -> dict[str, Any]:
        """Return the settings that, with the files' content, determine the weights."""
        return self.model_dump(mode="json", exclude=_APART)
