"""Configuration of ``train-drafter``: keys of the recipes and their defaults."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from ..core.config import CONTENT_FORMAT, STRICT, ModelPath, Positive, Size, StrictModel, TokenizerPath
from ..core.errors import did_you_mean
from ..core.values import LEAST_WINDOW, TextUnit
from .capture.config import CaptureConfig


class DataConfig(StrictModel):
    """Training data. Fields with a description are also options of prepare-data.

    Attributes:
        train: files, folders, globs or data sets (ultrachat, hub:NAME) with texts or conversations; .txt,
            .jsonl, .json or .parquet, also as .gz, .xz or .zst.
        heldout: evaluation data; if empty, the last documents of ``train`` are held out.
        prepared: folder made by ``vocabforge prepare-data``, instead of ``train`` and ``heldout``; the other
            data keys are taken from it.
        cache: folder of prepared data, looked up by content; default: OUTPUT/data.
        sequence_length: T, tokens per packed row.
        thinking_tags: opening and closing tag of a thinking block.
        template: additional variables of the chat template, such as ``date_string``.
    """

    train: tuple[Path, ...] = ()
    heldout: tuple[Path, ...] = ()
    prepared: Path | None = None
    cache: Path | None = None
    heldout_documents: Positive | None = Field(
        default=None,
        description="Number of held-out documents if no held-out texts are given [default: a tenth, 1 to 64].",
    )
    heldout_prompts: Positive = Field(
        default=40, description="Maximum number of held-out prompts, written in Spec-Bench format."
    )
    prompt_tokens: Positive = Field(default=32, description="Tokens per prompt made from plain text.")
    text_field: str | None = Field(
        default=None, description="Field with the text or conversation of a row [default: the usual names]."
    )
    text_unit: TextUnit = Field(default="file", description="Unit of a text file that forms one document.")
    separator: str | None = Field(
        default=None,
        description="Literal that separates the documents of a text file, such as '<|endoftext|>'; overrides the unit.",
    )
    sequence_length: Annotated[int, Field(ge=8, le=131072)] = 2048
    overlong: Literal["cut", "split", "skip"] = Field(
        default="cut",
        description="Documents longer than a row: **cut** keeps the first T tokens, **split** makes several "
        "documents of T tokens, **skip** drops them.",
    )
    append_eos: bool = Field(default=True, description="End plain texts with the end token.")
    thinking: Literal["keep", "mask", "drop"] = Field(
        default="keep",
        description="Thinking blocks: **keep** trains on them, **mask** keeps them as context only, "
        "**drop** removes them and disables thinking in the chat template.",
    )
    tools: Literal["keep", "skip"] = Field(
        default="keep",
        description="Tool definitions, calls and results: **keep** renders them and trains on the calls, "
        "**skip** drops such conversations.",
    )
    answers: Literal["all", "last", "each"] = Field(
        default="all",
        description="**all**: every answer, in one rendering. **last**: the last answer only. **each**: one "
        "document per question, as a served target reads it.",
    )
    thinking_tags: tuple[str, str] = ("<think>", "</think>")
    content_format: Literal["auto", "text", "parts"] = Field(default="auto", description=CONTENT_FORMAT)
    template: dict[str, Any] = Field(default_factory=dict)
    strict: bool = Field(default=False, description=STRICT)

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        if self.prepared is None and not self.train:
            raise ValueError("data.train is empty: give files, or data.prepared")
        if self.prepared is not None and (self.train or self.heldout):
            raise ValueError("data.prepared holds the rows already: leave data.train and data.heldout out")
        return self


Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
# YAML parses an unquoted no as false.
Precision = Annotated[
    Literal["auto", "no", "bf16"], BeforeValidator(lambda value: "no" if value is False else value)
]


def _known(name: str, table: Collection[str], what: str) -> str:
    if name not in table:
        hint = did_you_mean(name, table)
        raise ValueError(
            f"there is no {what} {name!r}, only {', '.join(table)}" + (f"; {hint}" if hint else "")
        )
    return name


class DrafterConfig(StrictModel):
    """Architecture of the drafter; missing values are taken from the target.

    Attributes:
        kind: ``eagle3``, ``eagle1``, ``medusa``, ``peagle``, ``dflash``, ``dspark`` or ``mtp``.
        init: drafter to start from: a native artefact (the command converts other layouts). Its sizes are
            used, and the keys below must not contradict it.
        freeze: train only the draft heads (needs ``init`` and a head under ``heads``).
        head: ``target`` shares the target's frozen head; ``own`` trains a head initialised from its rows.
        vocab: subset artefact: draft only these tokens (EAGLE-3's reduced vocabulary). With ``head: target``
            the rows are the target's and stay frozen, so only the ids are stored.
        aux_layers: target layers (0-based outputs) read by EAGLE-3's ``fc``, any number of them; default 1,
            n//2 - 1, n - 4. Other kinds read the final hidden states and reject the key.
        intermediate_size: width of the decoder layer's MLP; default: the target's.
        num_heads: attention heads of the decoder layer; default: the target's.
        num_kv_heads: key and value heads of the decoder layer; default: the target's.
        rope: ``target`` uses the target's RoPE over whole heads (that of the sliding-window layers if layer
            types differ); ``plain`` has no context extension.
        rope_theta: base of ``plain``; default 10,000.
        num_layers: decoder layers; default 1 (EAGLE-3), 5 (DFlash, DSpark) or 4 (P-EAGLE).
        sliding_window: number of positions that an EAGLE-3 drafter attends to; default: all. For texts far longer
            than the rows. Other kinds reject the key.
        fc_norm: EAGLE-3.1: RMSNorm over each layer's features before ``fc``. Default false, as for the
            following switches, which apply to EAGLE-3 and P-EAGLE.
        norm_output: EAGLE-3.1: feed back the state after the final norm.
        norm_before_fc: one RMSNorm over all features before ``fc``; excludes ``fc_norm``.
        norm_before_residual: apply a norm to the first layer's residual.
        qk_norm: RMSNorm of q and k, as in Qwen3 (EAGLE-3, P-EAGLE, MTP).
        block_size: rows of a block (DFlash, DSpark, P-EAGLE), including the last known token; default 8.
        mask_token_id: row of the target's embedding used for drafts in a block; default: a trained row.
        markov_rank: rank of DSpark's bias that depends on the previous token; default 256.
        medusa_heads: number of Medusa heads, 1 to 5; default 5. Other kinds reject the key.
        medusa_layers: residual blocks of each Medusa head; default 1. Other kinds reject the key.
        medusa_own_heads: separate LM head for each Medusa head, as published; needs ``head: own``. Default
            false.
        fc_bias: give EAGLE-1's ``fc`` a bias, as published; vLLM does not support it. Default false. Other
            kinds reject the key.
    """

    kind: str = "eagle3"
    init: ModelPath | None = None
    freeze: bool = False
    head: Literal["target", "own"] = "target"
    vocab: Path | None = None
    aux_layers: Annotated[list[int], Field(min_length=1)] | None = None
    intermediate_size: Positive | None = None
    num_heads: Positive | None = None
    num_kv_heads: Positive | None = None
    rope: Literal["target", "plain"] = "target"
    rope_theta: Annotated[float, Field(gt=1.0)] | None = None
    num_layers: Annotated[int, Field(ge=1, le=8)] | None = None
    sliding_window: Annotated[int, Field(ge=LEAST_WINDOW)] | None = None
    fc_norm: bool | None = None
    norm_output: bool | None = None
    norm_before_fc: bool | None = None
    norm_before_residual: bool | None = None
    qk_norm: bool | None = None
    block_size: Annotated[int, Field(ge=2, le=64)] | None = None
    mask_token_id: Annotated[int, Field(ge=0)] | None = None
    markov_rank: Positive | None = None
    medusa_heads: Annotated[int, Field(ge=1, le=5)] | None = None
    medusa_layers: Annotated[int, Field(ge=1, le=8)] | None = None
    medusa_own_heads: bool | None = None
    fc_bias: bool | None = None

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, kind: str) -> str:
        from ..models.drafters.registry import DRAFTERS

        return _known(kind, DRAFTERS, "drafter of kind")

    @model_validator(mode="after")
    def _goes_together(self) -> DrafterConfig:
        if self.vocab is not None and "head" not in self.model_fields_set:
            raise ValueError(
                "drafter.vocab needs drafter.head: own (its rows are trained) or target (rows of the target's head)"
            )
        if self.medusa_own_heads and self.head != "own":
            raise ValueError("drafter.medusa_own_heads needs drafter.head: own")
        if self.fc_norm and self.norm_before_fc:
            raise ValueError("drafter.fc_norm and drafter.norm_before_fc exclude each other: set one of them")
        if self.freeze and self.init is None:
            raise ValueError("drafter.freeze needs drafter.init: there is nothing trained to freeze")
        if self.rope_theta is not None and self.rope != "plain":
            raise ValueError("drafter.rope_theta needs drafter.rope: plain (target takes the target's base)")
        return self


class LowRankConfig(StrictModel):
    """Low-rank scorer of the whole vocabulary: W_down (d', d) and W_vocab (V, d').

    Attributes:
        rank: d'; default: an eighth of the hidden size (SpecVocab uses d/8 or d/16).
        init: ``svd`` starts at the best approximation of the target's LM head, ``random`` at small weights.
        weight: lambda, weight of its loss (SpecVocab: 0.1, added to the drafter's loss).
        shortlist: k, candidates that a ranker passes to the LM head; ignored by a low-rank head.
    """

    rank: Positive | None = None
    init: Literal["svd", "random"] = "svd"
    weight: Annotated[float, Field(gt=0.0)] = 0.1
    shortlist: Size = 2048


class RouterConfig(StrictModel):
    """Router over vocabulary clusters (DynaSpec; docs/methods.md), trained on the drafter's states.

    Its labels are the drafter's best tokens: current ones, or final ones with ``drafter.freeze``. Details not
    in the paper are our choice.

    Attributes:
        width: width of the MLP's hidden layers; default: a quarter of the hidden size.
        depth: number of hidden layers, each followed by SiLU.
        top_n: clusters that contain one of the drafter's top-n tokens are positive.
        clusters: clusters of the target's vocabulary (``cluster-vocab``).
        weight: lambda, weight of its loss, which is a mean over the clusters.
        detach: stop the router's gradients at its input states (our choice); false: they also reach the
            drafter.
    """

    width: Positive | None = None
    depth: Positive = 1
    top_n: Positive = 10
    clusters: Path
    weight: Annotated[float, Field(gt=0.0)] = 1.0
    detach: bool = True


class HeadsConfig(StrictModel):
    """Draft heads trained with the drafter, or on a frozen drafter (``drafter.freeze``).

    Attributes:
        router: DynaSpec's router for an EAGLE or block drafter.
        ranker: SpecVocab's ranker.
        small_ranker: second ranker with another rank.
        low_rank: SlimSpec's low-rank head, whose scores define the distribution.
    """

    ranker: LowRankConfig | None = None
    small_ranker: LowRankConfig | None = None
    low_rank: LowRankConfig | None = None
    router: RouterConfig | None = None


class TTTConfig(StrictModel):
    """Training-time test (EAGLE-3; docs/methods.md) and block drafting.

    Attributes:
        steps: K, draft steps of the unroll. Medusa and block drafters always train all their drafts.
        loss: the drafter's vocabulary loss, a kind or a mapping from kinds to weights: ``kl``, soft
            cross-entropy with the target; ``ce``, cross-entropy with the text; ``reverse-kl``; ``tv``, 1 -
            acceptance; ``nla``, -log acceptance; ``lk``, from ``kl`` to ``tv`` as acceptance grows. DSpark's
            published loss is ``{ce: 0.1, tv: 1.8}``. Draft heads always use ``kl``.
        decay: the loss of step k has weight decay^k.
        weighting: weight of each draft step: ``decay``, or ``d-pace`` for its contribution to the expected
            accepted length.
        warmup_fraction: initial fraction of training with one draft step instead of K.
        feature_weight: weight of the SmoothL1 loss to the target's hidden states; default depends on the kind
            (EAGLE-1: 1.0, others 0). EAGLE-1 with K > 1 is HASS training.
        token_weight: weight of the vocabulary loss; default depends on the kind (EAGLE-1: 0.1, others 1).
        feature_noise: half width of uniform noise on the features; default depends on the kind (EAGLE-1: 0.1,
            scaled by 512 / T as published; others 0).
        anchors: maximum number of blocks per packed row and step, drawn anew each time (DFlash, DSpark,
            P-EAGLE).
        confidence_weight: DSpark: weight of the confidence head's loss.
    """

    steps: Positive = 7
    loss: str | Annotated[dict[str, Annotated[float, Field(gt=0.0)]], Field(min_length=1)] = "kl"
    weighting: Literal["decay", "d-pace"] = "decay"
    decay: Annotated[float, Field(gt=0.0, le=1.0)] = 0.8
    warmup_fraction: Fraction = 0.0
    feature_weight: Annotated[float, Field(ge=0.0)] | None = None
    token_weight: Annotated[float, Field(gt=0.0)] | None = None
    feature_noise: Annotated[float, Field(ge=0.0)] | None = None
    anchors: Positive = 512
    confidence_weight: Annotated[float, Field(ge=0.0)] = 1.0

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, loss: str | dict[str, float]) -> str | dict[str, float]:
        from .loss.kinds import LOSSES

        for name in [loss] if isinstance(loss, str) else loss:
            _known(name, LOSSES, "loss")
        return loss

    @property
    def mixture(self) -> tuple[tuple[str, float], ...]:
        """Kinds of loss and their weights."""
        return ((self.loss, 1.0),) if isinstance(self.loss, str) else tuple(self.loss.items())


class MemoryConfig(StrictModel):
    """Trade-offs between memory and recomputation.

    Attributes:
        loss: ``fused`` never stores (rows, V) logits; ``naive`` is the plain formula; ``auto`` chooses by
            size.
        attention: attention of the TTT unroll: ``eager`` stores (T, T) weights, ``merged`` (CPU) and ``flex``
            (CUDA) work in blocks; ``auto`` chooses.
        checkpointing: store only each TTT step's input and recompute the step in the backward pass.
        weights: ``bf16`` trains bf16 weights with fp32 master weights and fp32 optimiser state.
        chunk_mb: workspace of the fused loss in MiB.
    """

    loss: Literal["auto", "naive", "fused"] = "auto"
    attention: Literal["auto", "eager", "merged", "flex"] = "auto"
    checkpointing: bool = False
    weights: Literal["fp32", "bf16"] = "fp32"
    chunk_mb: Positive = 256


class OptimConfig(StrictModel):
    """Optimiser with linear warm-up, constant learning rate and cosine decay.

    Attributes:
        name: ``adamw``, or ``muon``: Muon for the matrices between hidden states, AdamW for embeddings, heads
            and vectors. Muon needs fp32 weights and one process, DDP or FSDP2.
        steps: optimiser steps; required without ``epochs``.
        epochs: passes over the training rows, instead of ``steps``.
        batch_size: packed rows per step, over all processes.
        micro_batch_size: packed rows per forward pass and process; None: the process's whole share at once.
        lr: learning rate after the warm-up.
        betas: AdamW's decay rates of the first and second moment.
        eps: AdamW's epsilon.
        weight_decay: decoupled weight decay.
        clip: maximum gradient norm.
        warmup_fraction: fraction of the steps in which the learning rate rises to ``lr``.
        decay_fraction: fraction of the steps after the warm-up in which the rate decays; before, it stays at
            ``lr``. With ``ttt.warmup_fraction``, use less than 1 so that the K steps do not start at a low
            rate.
        min_lr_fraction: final learning rate of the cosine as a fraction of ``lr``.
        fused: update each tensor in one pass, on a CPU or on CUDA: faster if heads have many rows. The last
            bits differ. Needs fp32 weights and one process or DDP.
    """

    name: Literal["adamw", "muon"] = "adamw"
    steps: Annotated[int, Field(ge=0)] = 0
    epochs: Annotated[float, Field(gt=0.0)] | None = None
    batch_size: Positive = 8
    micro_batch_size: Positive | None = None
    lr: Annotated[float, Field(gt=0.0)] = 1e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: Annotated[float, Field(gt=0.0)] = 0.5
    warmup_fraction: Fraction = 0.015
    decay_fraction: Fraction = 1.0
    min_lr_fraction: Fraction = 0.0
    fused: bool = False

    @model_validator(mode="after")
    def _has_an_end(self) -> OptimConfig:
        if not self.steps and self.epochs is None:
            raise ValueError("steps is missing: give optim.steps, or optim.epochs")
        return self

    def over(self, rows: int) -> OptimConfig:
        """Return a copy with ``epochs`` over ``rows`` packed rows converted to ``steps``."""
        if self.epochs is None:
            return self
        steps = max(1, math.ceil(self.epochs * rows / self.batch_size))
        return self.model_copy(update={"steps": steps, "epochs": None})


class LiveConfig(StrictModel):
    """Live decoding: the real decoder runs on held-out prompts during training.

    Attributes:
        prompts: held-out prompts decoded at every evaluation; 0 disables live decoding. Before the last step,
            fewer are decoded if all would take over a tenth of the time between evaluations.
        max_new_tokens: tokens decoded per prompt.
        max_prompt_tokens: longer prompts are skipped.
        prompt_format: ``chat`` renders a prompt with the chat template, ``raw`` does not; ``auto`` is
            ``chat`` if there is a template.
        depth: levels of the draft tree.
        topk: draft tokens of each expanded node.
        total: draft tokens of the tree.
        chain: also decode with a chain of as many drafts as TTT steps, to compare with the simulated length.
        load_target: with a capture cache or server, load the whole target for live decoding, which is
            otherwise disabled.
    """

    prompts: Annotated[int, Field(ge=0)] = 8
    max_new_tokens: Positive = 64
    max_prompt_tokens: Positive = 1024
    prompt_format: Literal["auto", "chat", "raw"] = "auto"
    depth: Positive = 5
    topk: Positive = 8
    total: Positive = 30
    chain: bool = True
    load_target: bool = False


class RunConfig(StrictModel):
    """Bookkeeping of a run, and its use of the machine.

    Attributes:
        seed: seed of initial weights, data order and random draws.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        log_every: steps between lines of metrics.jsonl.
        eval_every: steps between evaluations on held-out data.
        eval_rows: maximum number of held-out rows per evaluation.
        checkpoint_every: steps between checkpoints.
        keep: number of newest checkpoints to keep.
        mixed_precision: ``auto`` uses bf16 passes on CUDA and with bf16 weights, otherwise fp32.
        strategy: how several processes share the work; ``auto`` follows the launcher.
        threads: CPU threads of torch; default: chosen from the available cores.
        trackers: accelerate trackers that also receive the figures of metrics.jsonl.
    """

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    device: str = "auto"
    log_every: Positive = 20
    eval_every: Positive = 200
    eval_rows: Positive = 64
    checkpoint_every: Positive = 200
    keep: Positive = 2
    mixed_precision: Precision = "auto"
    strategy: Literal["auto", "single", "ddp", "fsdp", "deepspeed"] = "auto"
    threads: Positive | None = None
    trackers: tuple[str, ...] = ("tensorboard",)
    live: LiveConfig = LiveConfig()


class TrainConfig(StrictModel):
    """Configuration of ``train-drafter``; see the sections.

    Attributes:
        target: folder, GGUF file or Hub name of the target.
        tokenizer: folder or tokenizer.json; default: the target's folder.
        output: run folder, for ``drafter/``, ``checkpoints/``, ``metrics.jsonl``.
    """

    removed: ClassVar = {
        "joint": "leave it out, which trains Medusa heads on the frozen target (Medusa-1)",
        "run.sequence_parallel": "leave it out; lower data.sequence_length or set memory.checkpointing for long rows",
    }

    target: ModelPath
    tokenizer: TokenizerPath | None = None
    output: Path
    data: DataConfig
    capture: CaptureConfig = CaptureConfig()
    drafter: DrafterConfig = DrafterConfig()
    heads: HeadsConfig = HeadsConfig()
    ttt: TTTConfig = TTTConfig()
    optim: OptimConfig
    memory: MemoryConfig = MemoryConfig()
    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _one_lm_head(self) -> TrainConfig:
        if self.drafter.medusa_own_heads and self.heads != HeadsConfig():
            raise ValueError("draft heads need one LM head: leave out heads, or drafter.medusa_own_heads")
        return self

    @model_validator(mode="after")
    def _bf16_weights(self) -> TrainConfig:
        if self.memory.weights == "bf16" and self.run.mixed_precision == "no":
            raise ValueError(
                "memory.weights bf16 needs bf16 passes: leave run.mixed_precision at auto, or set bf16"
            )
        if self.memory.weights == "bf16" and self.optim.fused:
            raise ValueError("optim.fused updates fp32 weights: leave it out with memory.weights bf16")
        if self.memory.weights == "bf16" and self.optim.name == "muon":
            raise ValueError("optim.name muon updates fp32 weights: take adamw with memory.weights bf16")
        return self
