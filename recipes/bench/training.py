"""Compare the speed and memory of EAGLE-3 training steps on a CPU with speculators, in the same run.

A step is forward pass, loss and backward pass from captured states, with the LM head trained and frozen. The library
runs as it configures itself there: eager attention and losses. The sides alternate by round; figures are medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from command import run, seconds_of, take_turns
from tensor_memory import TensorMemory
from torch import Tensor, nn

from vocabforge.core.config import StrictModel, apply_overrides, parse_config
from vocabforge.core.console import DataTable
from vocabforge.core.registry import check_known
from vocabforge.models.drafters.eagle3 import Eagle3Drafter
from vocabforge.models.drafters.registry import drafter_sizes, new_drafter
from vocabforge.models.target.logits import IDENTITY, LogitFacts
from vocabforge.train.capture.online import CapturedBatch, RowBatch
from vocabforge.train.config import MemoryConfig, TTTConfig
from vocabforge.train.step import TrainStep
from vocabforge.train.ttt import rows_by_step

_MB = 1e6
_DECAY = 0.8
INSTALL = (
    "speculators is not installed, so only our step is measured: "
    "pip install --no-deps --target FOLDER speculators hs-connectors loguru pydantic-settings openai aiohttp sniffio, "
    "then PYTHONPATH=FOLDER"
)


@dataclass(frozen=True)
class TrainingShape:
    """Sizes of a target and of a step.

    Attributes:
        hidden, intermediate, heads, kv_heads, vocab: H, the MLP's size, attention heads, V.
        draft_vocab: R.
        length: tokens of the row.
        steps: K of the training-time test.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int
    draft_vocab: int
    length: int
    steps: int = 3

    def config(self) -> dict[str, Any]:
        """Return the configuration of such a Llama."""
        from transformers import AutoConfig

        return AutoConfig.for_model(
            "llama",
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=4,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            vocab_size=self.vocab,
            max_position_embeddings=max(2048, self.length),
        ).to_dict()


SHAPES: dict[str, TrainingShape] = {
    "rival-16k": TrainingShape(256, 768, 4, 2, 16_384, 8192, length=256),
    "rival-152k": TrainingShape(512, 1536, 8, 4, 151_936, 32_000, length=512),
}


class TrainingBenchConfig(StrictModel):
    """Settings of ``training.py``, given as ``key=value``.

    Attributes:
        shapes: names of :data:`SHAPES`.
    """

    shapes: tuple[str, ...] = ("rival-16k", "rival-152k")


def installed() -> bool:
    return find_spec("speculators") is not None


def bench_training(settings: Sequence[str] = (), *, repeats: int = 3) -> dict[str, Any]:
    """Measure a training step of both libraries at each shape.

    Args:
        settings: ``key=value`` of :class:`TrainingBenchConfig`.
        repeats: timed rounds, after two untimed ones.

    Returns:
        Plain JSON: versions, and for every shape ``rows``: ``variant``, ``seconds`` (median of the rounds in
        ``all_seconds``), ``tokens_per_s`` and ``extra_mb`` (peak memory of live tensors minus that held before).
        ``missing``: whether only our side was measured.

    Raises:
        UsageError: unknown shape.
        ConfigError: unknown setting.
    """
    config = parse_config(TrainingBenchConfig, apply_overrides({}, settings), source="the command line")
    for name in config.shapes:
        check_known(name, SHAPES, "shape")
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "repeats": repeats,
        "missing": not installed(),
        "shapes": [
            {"name": name, **vars(SHAPES[name]), "rows": _measure(name, SHAPES[name], repeats)}
            for name in config.shapes
        ],
    }


def speculators_model(drafter: Eagle3Drafter, target_head: Tensor) -> nn.Module:
    """Build the library's model with the drafter's sizes, initial embedding and heads."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import AutoConfig

    sizes = drafter.config
    layer = AutoConfig.for_model(
        "llama",
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        vocab_size=sizes.vocab_size,
        max_position_embeddings=sizes.max_position_embeddings,
        rms_norm_eps=sizes.rms_norm_eps,
    )
    layer._attn_implementation = "eager"
    ids = drafter.target_ids
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=len(ids),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=1)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=[]),
        ),
    )
    model = Eagle3DraftModel(config).float()
    member = torch.zeros(sizes.vocab_size, dtype=torch.bool)
    member[ids] = True
    model.load_vocab_mappings(member, ids - torch.arange(len(ids)))
    with torch.no_grad():
        model.embed_tokens.weight.copy_(drafter.embedding)
        for head in (model.lm_head, model.verifier_lm_head):
            head.weight.copy_(target_head[ids])
    return model


def speculators_loss(model: Any, batch: CapturedBatch, steps: int, decay: float) -> Callable[[], Tensor]:
    """Return a function for the loss of one packed row (1, T), as the library's trainer computes it.

    The loss covers the same rows as ours. The library's row t has the features of t, and the token, mask and
    teacher of t + 1, which its data loader shifts left.
    """
    from speculators.losses import resolve_loss_config

    losses = resolve_loss_config("kl_div", "eager")
    document = torch.where(batch.document != 0, batch.document, -1)[:, :-1]
    mask = torch.nn.functional.pad(batch.loss_mask[:, 1:-1] & batch.loss_mask[:, 2:], (0, 1))

    def loss() -> Tensor:
        return model(
            batch.features[:, :-1],
            batch.input_ids[:, 1:],
            document,
            loss_mask=mask,
            verifier_last_hidden_states=batch.hidden[:, 1:],
            ttt_steps=steps,
            ttt_step_loss_decay=decay,
            loss_config=losses,
        )[1]

    return loss


def _steps(shape: TrainingShape) -> dict[str, Callable[[], None]]:
    """Return our step and that of speculators from the same states of one row, all of it assistant text."""
    vocab, hidden = shape.vocab, shape.hidden
    torch.manual_seed(0)
    embedding, head = (torch.randn(vocab, hidden).mul_(0.05) for _ in "ab")
    ids = torch.randperm(vocab)[: shape.draft_vocab].sort().values
    features, states = torch.randn(1, shape.length, 3 * hidden), torch.randn(1, shape.length, hidden)
    ones = torch.ones(1, shape.length, dtype=torch.int64)
    tokens = torch.randint(0, vocab, (1, shape.length))
    rows = RowBatch(tokens, ones.bool(), ones, torch.arange(shape.length)[None])
    facts = LogitFacts.of(states[0], head, IDENTITY).map(lambda each: each[None])
    batch = CapturedBatch(**vars(rows), features=features, hidden=states, facts=facts)
    wanted = drafter_sizes("eagle3", shape.config(), draft_vocab_size=len(ids))
    drafter: Any = new_drafter("eagle3", wanted, embedding, head, ids)
    ttt, memory = TTTConfig(decay=_DECAY), MemoryConfig(loss="fused")
    module = TrainStep(drafter, nn.ModuleDict(), head, ttt, memory=memory)
    counted = rows_by_step(rows.loss_mask, rows.document, shape.steps)
    losses: dict[str, tuple[Any, Callable[[], Tensor]]] = {
        "vocabforge": (drafter, lambda: module(batch, shape.steps, counted)[0])
    }
    if installed():
        model = speculators_model(drafter, head)
        losses["speculators"] = model, speculators_loss(model, batch, shape.steps, _DECAY)

    def step(model: Any, loss: Callable[[], Tensor], learns: bool) -> None:
        model.lm_head.weight.requires_grad_(learns)
        loss().backward()
        model.zero_grad(set_to_none=True)

    return {
        f"{name}, LM head {'trained' if learns else 'frozen'}": partial(step, *parts, learns)
        for learns in (True, False)
        for name, parts in losses.items()
    }


def _measure(name: str, shape: TrainingShape, repeats: int) -> list[dict[str, Any]]:
    """Warm up, measure memory, then time the variants."""
    memory, sides = {}, _steps(shape)
    for variant, call in sides.items():
        call()  # creates what later runs reuse
        with TensorMemory() as counted:
            call()
        memory[variant] = counted.peak / _MB
    seconds = take_turns(
        name, {variant: partial(seconds_of, call) for variant, call in sides.items()}, repeats
    )
    return [
        {
            "variant": variant,
            "seconds": statistics.median(each),
            "all_seconds": each,
            "tokens_per_s": shape.length / statistics.median(each),
            "extra_mb": memory[variant],
        }
        for variant, each in seconds.items()
    ]


def shown(result: dict[str, Any]) -> list[DataTable | str]:
    """Return a table for each shape, and what the figures mean."""
    parts: list[DataTable | str] = [f"torch {result['torch']}, threads: {result['threads']}"]
    for shape in result["shapes"]:
        formats = {"variant": "", "tokens_per_s": ",.0f", "seconds": ".4f", "extra_mb": ",.1f"}
        rows = [[format(row[key], form) for key, form in formats.items()] for row in shape["rows"]]
        title = (
            f"{shape['name']}: {shape['length']:,} tokens, K = {shape['steps']}, H = {shape['hidden']:,}, "
            f"V = {shape['vocab']:,}, R = {shape['draft_vocab']:,}"
        )
        parts.append(DataTable(title, ("variant<", "tokens/s", "seconds", "extra MB"), rows))
    parts += [INSTALL] if result["missing"] else []
    return [
        *parts,
        "extra MB: highest memory above what was held before, results included. Seconds are medians of the rounds.",
    ]


if __name__ == "__main__":
    run(__doc__, bench_training, shown)
