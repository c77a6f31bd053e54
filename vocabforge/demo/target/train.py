"""The training loop of a small target: packed rows, exact cross-entropy, checkpoints."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...core.console import say
from ...core.errors import DataError
from ...core.journal import MetricsLog
from ...core.progress import ProgressBar
from ...corpus.prepared.artifact import PreparedData, prepare_in
from ...corpus.prepared.dataset import PackedRows
from ...corpus.prepared.options import HeldoutOptions, PrepareOptions
from ...corpus.tokenizer.tokenizer import TextTokenizer
from ...models.target.documents import document_mask
from ...train import checkpoint as checkpoints
from ...train.capture.online import RowBatch, to_tensors
from ...train.checkpoint import restore_state, state_of
from ...train.config import OptimConfig
from ...train.machine import stop_requested
from ...train.optim import learning_rate, make_optimizer, set_learning_rate
from .config import TinyTargetConfig

METRICS = "metrics.jsonl"
_LOG_EVERY, _KEEP, _RECENT = 10, 2, 20
_EXACT_BYTES = 128 << 20  # maximum logits of held-out text held at once
_CPU = torch.device("cpu")


class TextBatch(RowBatch):
    """Packed rows; ``loss_mask`` marks the trained tokens."""

    @property
    def keep(self) -> Tensor:
        """Bool (B, T - 1): predictions of the next token that count for the loss."""
        document = self.document
        follows = (document[:, 1:] == document[:, :-1]) & (document[:, 1:] > 0)
        return self.loss_mask[:, 1:] & follows

    @property
    def labels(self) -> Tensor:
        """(n,) next tokens that count for the loss."""
        return self.input_ids[:, 1:][self.keep]


@dataclass(frozen=True)
class TextRows:
    """Packed rows, possibly memory-mapped, with their loss mask."""

    packed: PackedRows
    loss_on: str

    def __len__(self) -> int:
        return len(self.packed)

    def batch(self, chosen: Tensor, device: torch.device = _CPU) -> TextBatch:
        """Return the rows with these numbers."""
        read = to_tensors(self.packed, chosen.tolist(), device)
        learnt = read.loss_mask if self.loss_on == "assistant" else read.document > 0
        return TextBatch(read.input_ids, learnt, read.document, read.position)


# An optimiser step: step number and batch -> loss and gradient norm.
Step = Callable[[int, TextBatch], tuple[Tensor, Tensor]]
# Builds the step from model, optimizer, training rows and settings.
MakeStep = Callable[[Any, torch.optim.Optimizer, TextRows, TinyTargetConfig], Step]


def prepared_rows(folder: Path, tokenizer: TextTokenizer, config: TinyTargetConfig) -> PreparedData:
    """Return training and held-out rows, created once in ``folder`` and memory-mapped.

    Long conversations are split.

    Raises:
        DataError: the files have no conversations, or the held-out files are empty (checked before training).
    """
    options = PrepareOptions(config.sequence_length, overlong="split", heldout=HeldoutOptions(prompts=0))
    # Without a held-out file, prepared data would hold out the last training documents.
    heldout = list(config.heldout_files) or [config.train]
    return prepare_in(folder, tokenizer, [config.train], heldout, options)


def batches(count: int, config: OptimConfig, seed: int) -> Iterator[Tensor]:
    """Yield the row numbers of each step's batch; every epoch is shuffled."""
    generator = torch.Generator().manual_seed(seed)
    waiting = torch.empty(0, dtype=torch.int64)
    for _ in range(config.steps):
        while len(waiting) < config.batch_size:
            waiting = torch.cat([waiting, torch.randperm(count, generator=generator)])
        yield waiting[: config.batch_size]
        waiting = waiting[config.batch_size :]


def counted_states(model: Any, batch: TextBatch) -> Tensor:
    """Return the (n, H) states after the final norm at counted predictions."""
    output = model.model(
        input_ids=batch.input_ids,
        attention_mask=document_mask(batch.document),
        position_ids=batch.position,
        use_cache=False,
    )
    return output.last_hidden_state[:, :-1][batch.keep]


def batch_loss(model: Any, batch: TextBatch) -> tuple[Tensor, int]:
    """Return the mean cross-entropy over the counted predictions of a batch, and their number.

    Only counted positions go through the LM head, which is a third of a tiny model's work.
    """
    logits = model.lm_head(counted_states(model, batch)).float()  # (n, V)
    # A batch without counted positions (answers cut off) has loss 0, not NaN.
    return F.cross_entropy(logits, batch.labels, reduction="sum") / max(len(logits), 1), len(logits)


def plain_step(
    model: Any, optimizer: torch.optim.Optimizer, rows: TextRows, config: TinyTargetConfig
) -> Step:
    """Return a step on the exact loss, in fp32 unless the caller uses autocast."""

    def step(_number: int, batch: TextBatch) -> tuple[Tensor, Tensor]:
        loss, _ = batch_loss(model, batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach(), norm

    return step


@torch.no_grad()
def heldout_loss(model: Any, rows: TextRows, chosen: Tensor, batch_size: int = 8) -> tuple[float, int]:
    """Return the summed cross-entropy (nats) over counted predictions of some rows, and their number."""
    head = model.lm_head.weight
    size = max(1, _EXACT_BYTES // (4 * len(head)))
    total, count = 0.0, 0
    for part in chosen.split(batch_size):
        batch = rows.batch(part, head.device)
        hidden, labels = counted_states(model, batch), batch.labels
        for states, label in zip(hidden.split(size), labels.split(size)):
            total += float(F.cross_entropy(F.linear(states, head), label, reduction="sum"))
        count += len(labels)
    return total, count


class WorkFolder:
    """Folder next to an output in which an unfinished run stores packed rows, checkpoints and figures."""

    def __init__(self, output: Path) -> None:
        self.path = output.with_name(f"{output.name}.checkpoints")
        self.rows, self.steps, self.metrics = self.path / "rows", self.path / "steps", self.path / METRICS

    def remove(self) -> None:
        """Remove the folder after the run is finished."""
        shutil.rmtree(self.path, ignore_errors=True)


def train_model(
    model: Any,
    rows: TextRows,
    config: TinyTargetConfig,
    work: WorkFolder,
    identity: dict[str, Any],
    make_step: MakeStep = plain_step,
) -> tuple[float, float]:
    """Run all steps in place, starting from the newest checkpoint in ``work`` if there is one.

    Args:
        identity: settings and input hashes that must match on resume.

    Returns:
        The first loss and the mean of the last 20, in nats per counted token.

    Raises:
        DataError: a loss is not finite.
        KeyboardInterrupt: the run was stopped; it can be resumed.
    """
    optim = config.optim
    optimizer = make_optimizer(dict(model.named_parameters()), optim)
    take = make_step(model, optimizer, rows, config)
    start, facts = _resume(work, model, optimizer, optim.steps, identity)
    first, recent = facts.get("first", math.nan), list(facts.get("recent", ()))
    log = MetricsLog(work.metrics, keep_until=start)
    tokens = optim.batch_size * rows.packed.length
    chosen = itertools.islice(batches(len(rows), optim, config.seed), start, None)
    with (
        stop_requested() as stop,
        ProgressBar("Training the target", optim.steps * tokens, "tokens", initial=start * tokens) as bar,
    ):
        for done, numbers in enumerate(chosen, start + 1):
            rate = learning_rate(done - 1, optim)
            set_learning_rate(optimizer, rate)
            loss, norm = take(done - 1, rows.batch(numbers, model.device))
            value = float(loss)
            if not math.isfinite(value):
                raise DataError(
                    "the training loss is not finite",
                    got=f"{value} at step {done}",
                    remedy="lower optim.lr; the last checkpoint, if there is one, is intact",
                )
            first = value if math.isnan(first) else first
            recent = [*recent[1 - _RECENT :], value]
            mean, last = sum(recent) / len(recent), done == optim.steps
            if last or done % _LOG_EVERY == 0:
                log.write(kind="train", step=done, lr=rate, loss=mean, grad_norm=float(norm))
            if last or stop.is_set() or done % config.checkpoint_every == 0:
                state = state_of(model, optimizer, {"first": first, "recent": recent})
                checkpoints.save_checkpoint(work.steps, done, state, identity, _KEEP)
            bar.update(tokens, note=f"loss {mean:.3f}")
            if stop.is_set() and not last:
                say(f"Stopped at step {done}; the same command resumes from there.")
                raise KeyboardInterrupt
    return first, sum(recent) / len(recent)


def _resume(
    work: WorkFolder, model: Any, optimizer: torch.optim.Optimizer, steps: int, identity: dict[str, Any]
) -> tuple[int, dict[str, Any]]:
    checkpoints.remove_remains(work.steps)
    found = checkpoints.load_latest(work.steps, identity)
    if found is None:
        return 0, {}
    step, state = found
    restore_state(model, optimizer, state)
    say(f"Resuming at step {step} of {steps} ({work.steps})")
    return step, state.facts
