"""From a configuration to a :class:`~vocabforge.train.trainer.Trainer`: load, check that all fits, assemble."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..capture.build import build_capture, load_capture_target
from ..capture.cache import CachedCapture
from ..core.distributed import Group
from ..core.errors import MismatchError, VocabForgeError
from ..core.progress import say
from ..corpus.tokenizer import TextTokenizer
from ..models.checkpoint import checkpoint_files, read_headers
from ..models.drafter import Drafter
from ..models.drafter_io import TargetTensors, check_target, load_trainable
from ..models.drafters import new_drafter
from ..models.fingerprint import target_fingerprint
from ..models.target import check_tokenizer_fits
from ..models.target_load import dtype_name
from .basis import Basis, identity_of, read_basis, step_settings
from .config import TrainConfig
from .data import TrainData, open_data, prepare, to_tensors
from .draft_heads import make_heads
from .machine import device_of, set_threads, uses_bf16
from .start import start_from_target
from .step import TrainStep
from .trainer import Live, Trainer

CALIBRATION_ROWS = 4
# Makes the live decoder from target and prompts; handed in by the command, None decodes nothing.
MakeLive = Callable[[Any, Path, TrainConfig, TextTokenizer], Live | None]


def build_trainer(
    config: TrainConfig, group: Group | None = None, make_live: MakeLive | None = None
) -> Trainer:
    """Load target, tokenizer and data, and assemble the drafter.

    Args:
        group: the launched processes, joined; None is this one alone.

    Raises:
        VocabForgeError: anything missing, damaged, or not belonging together.
    """
    group = Group(0, 1) if group is None else group
    device = device_of(config)
    basis = read_basis(config, group)
    config, tokenizer = basis.config, basis.tokenizer
    if device.type == "cpu":
        set_threads(config)
    torch.manual_seed(config.run.seed)
    read_headers(checkpoint_files(config.target))  # before the data: a damaged target is known at once
    data = _data(config, tokenizer, group)
    fingerprint = target_fingerprint(config.target)
    target = load_capture_target(
        config.target, config.capture, aux_layers=basis.sizes.aux_layers or None, device=device
    )
    check_tokenizer_fits(
        tokenizer.vocab_size, target.vocab_size, tokenizer=tokenizer.source, target=config.target
    )
    rows = {"train": data.train, "heldout": data.heldout}
    captured = build_capture(config.capture, target, rows=rows, fingerprint=fingerprint)
    if config.drafter.init is None:
        drafter = _fresh_drafter(basis, target, captured, data, device)
    else:
        drafter = _loaded_drafter(basis, target, fingerprint)
    heads = make_heads(config.heads, _factored(drafter, target), seed=config.run.seed)
    kept = captured.key.dtype if isinstance(captured, CachedCapture) else dtype_name(target.dtype)
    identity = {
        **identity_of(config, data.digest(), fingerprint),
        "tokenizer": tokenizer.fingerprint,
        "states": f"{dtype_name(target.dtype)}, kept in {kept}",
        "passes": "bf16" if uses_bf16(config, device) else "fp32",
    }
    meta = {
        "target_fingerprint": fingerprint,
        "target_name": config.target.name,
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "eos_ids": list(tokenizer.eos_ids),
    }
    step = TrainStep(drafter, heads, target.head_weight, step_settings(config))
    live = None
    if make_live is not None and config.run.live.prompts and group.rank == 0:
        live = make_live(target, data.prepared.prompts, config, tokenizer)
    return Trainer(config, target, step, data, captured, device, group, identity, meta, live)


def _data(config: TrainConfig, tokenizer: TextTokenizer, group: Group) -> TrainData:
    """The rows, prepared by rank 0 and then read by all."""
    cache = config.output / "data"
    if group.rank == 0:
        try:
            data = prepare(config.data, tokenizer, cache=cache)
        except VocabForgeError:
            for folder in (cache, config.output):  # leave no empty folder behind
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise
        say(_described(data))
    made = group.gather(data.prepared.artifact.path if group.rank == 0 else None)[0]
    return data if group.rank == 0 else open_data(made, tokenizer)


def _described(data: TrainData) -> str:
    """One line for people."""
    figures = data.figures["train"]
    line = (
        f"{len(data.train):,} packed rows of {data.train.length:,} tokens ({data.train.fill:.0%} full, "
        f"{figures['counted'] / max(figures['tokens'], 1):.0%} of the tokens learnt from), "
        f"{len(data.heldout):,} rows held out"
    )
    if long := figures["overlong"]["sequences"]:
        line += f"; {long:,} documents longer than a row, {figures['overlong']['lost_tokens']:,} tokens lost"
    return line


def _factored(drafter: Drafter, target: Any) -> torch.Tensor:
    """The head that low-rank heads start from: the drafter's where it has a full one of its own."""
    own = len(drafter.head_weight) == target.vocab_size
    return (drafter.head_weight if own else target.head_weight).detach()


def _fresh_drafter(
    basis: Basis, target: Any, captured: Any, data: TrainData, device: torch.device
) -> Drafter:
    """A new drafter, started from the target before anything wraps it, and from the same rows on every process."""
    kind, subset = basis.config.drafter.kind, basis.subset
    ids = None if subset is None else torch.from_numpy(subset.ids)
    drafter = new_drafter(kind, basis.sizes, target.embedding, target.head_weight, ids).to(device)
    some = list(range(min(len(data.train), CALIBRATION_ROWS)))
    batch = captured(to_tensors(data.train, some, device), [("train", row) for row in some])
    start_from_target(drafter, batch)
    return drafter


def _loaded_drafter(basis: Basis, target: Any, fingerprint: str) -> Drafter:
    """The drafter that ``drafter.init`` names.

    Raises:
        MismatchError: it is of another target, or drafts over another vocabulary than the configuration's.
    """
    wanted, subset = basis.config.drafter, basis.subset
    assert wanted.init is not None
    drafter, artifact = load_trainable(wanted.init, TargetTensors(target.embedding, target.head_weight))
    check_target(artifact, fingerprint, target=basis.config.target)
    if subset is not None and drafter.target_ids.tolist() != subset.ids.tolist():
        raise MismatchError(
            "drafter.init drafts over another vocabulary",
            got=f"{len(drafter.target_ids):,} other ids",
            expected=f"the {len(subset.ids):,} ids of {wanted.vocab}",
            source=wanted.init,
            remedy="leave drafter.vocab out, or exchange its head first with vocabforge revocab",
        )
    return drafter
