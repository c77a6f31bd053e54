"""From a configuration to a :class:`~vocabforge.train.loop.Trainer`: load, check that all fits, assemble."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..capture.build import build_capture, load_capture_target
from ..capture.cache import CachedCapture
from ..capture.cache_format import dtype_name
from ..core.distributed import Group, local_rank, world_size
from ..core.errors import MismatchError, UsageError, VocabForgeError
from ..core.files import check_run_folder
from ..core.progress import say
from ..corpus.tokenizer import TextTokenizer, load_tokenizer
from ..models.checkpoint import checkpoint_files, read_headers
from ..models.device import choose_device
from ..models.drafter import Drafter
from ..models.drafter_io import TargetTensors, check_target, load_trainable, native_sizes
from ..models.drafters import check_wishes, drafter_sizes, new_drafter
from ..models.eagle3 import Eagle3Drafter
from ..models.fingerprint import target_fingerprint
from ..models.head_io import drafter_digest
from ..models.target import check_row_length, check_tokenizer_fits, read_target_config
from ..vocab.subset import VocabSubset, load_subset
from .batches import divide
from .candidates import check_candidates
from .config import DrafterConfig, TrainConfig
from .data import TrainData, open_data, prepare, to_tensors, with_prepared
from .draft_heads import KINDS, configured, make_heads
from .heldout import Live
from .loop import Trainer
from .machine import set_threads, uses_bf16
from .start import start_from_target
from .start_copying import start_copying
from .step import StepSettings, TrainStep
from .strategy import wanted_strategy
from .tracker_table import check_trackers
from .vocab_loss import LossOptions

CALIBRATION_ROWS = 4
# Makes the live decoder from target and prompts; handed in by the command, None decodes nothing.
MakeLive = Callable[[Any, Path, TrainConfig, TextTokenizer], "Live | None"]
# (feature weight, token weight, feature noise): EAGLE-1 learns to predict hidden states, and little from tokens.
_PUBLISHED: Mapping[str, tuple[float, float, float]] = {"eagle1": (1.0, 0.1, 0.1)}


def device_of(config: TrainConfig) -> torch.device:
    """This process's device: under a launcher each takes its own GPU."""
    device = choose_device(config.run.device)
    if device.type == "cuda":
        device = torch.device("cuda", local_rank()) if world_size() > 1 else device
        torch.cuda.set_device(device)
    return device


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
    config = config.model_copy(update={"data": with_prepared(config.data)})
    device = device_of(config)
    if device.type == "cpu":
        set_threads(config)
    torch.manual_seed(config.run.seed)
    divide(config.optim, group.rank, group.size)
    wanted_strategy(config.run.strategy, group)
    check_trackers(config.run.trackers)
    check_run_folder(config.output)
    raw = read_target_config(config.target)
    tokenizer = load_tokenizer(config.tokenizer or config.target)
    subset = draft_vocabulary(config.drafter, tokenizer)
    sizes = sizes_of(config.drafter, raw, subset)
    check_row_length(raw, config.data.sequence_length, source=config.target / "config.json")
    check_sampling(config, sizes.vocab_size)
    read_headers(checkpoint_files(config.target))  # before the data: a damaged target is known at once
    data = _data(config, tokenizer, group)
    fingerprint = target_fingerprint(config.target)
    target = load_capture_target(
        config.target, config.capture, aux_layers=sizes.aux_layers or None, device=device
    )
    check_tokenizer_fits(
        tokenizer.vocab_size, target.vocab_size, tokenizer=tokenizer.source, target=config.target
    )
    captured = build_capture(
        config.capture,
        target,
        rows={"train": data.train, "heldout": data.heldout},
        fingerprint=fingerprint,
    )
    drafter = _drafter(config, sizes, subset, target, fingerprint, device)
    if config.drafter.init is None:
        # Before anything wraps the step, and from the same rows on every process.
        rows = _calibration(captured, data, device)
        start_from_target(drafter, rows)
        if config.drafter.copying:
            assert isinstance(drafter, Eagle3Drafter)  # the configuration says so
            start_copying(drafter, rows, rows.input_ids.shape[1])
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
        say(described(data))
    made = group.gather(data.prepared.artifact.path if group.rank == 0 else None)[0]
    return data if group.rank == 0 else open_data(made, tokenizer)


def described(data: TrainData) -> str:
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


def _calibration(captured: Any, data: TrainData, device: torch.device) -> Any:
    rows = list(range(min(len(data.train), CALIBRATION_ROWS)))
    return captured(to_tensors(data.train, rows, device), [("train", row) for row in rows])


def _factored(drafter: Drafter, target: Any) -> torch.Tensor:
    """The head that low-rank heads start from: the drafter's where it has a full one of its own."""
    own = len(drafter.head_weight) == target.vocab_size
    return (drafter.head_weight if own else target.head_weight).detach()


def _drafter(
    config: TrainConfig,
    sizes: Any,
    subset: VocabSubset | None,
    target: Any,
    fingerprint: str,
    device: torch.device,
) -> Drafter:
    """A fresh drafter, or the one that ``drafter.init`` names."""
    if config.drafter.init is None:
        ids = None if subset is None else torch.from_numpy(subset.ids)
        return new_drafter(config.drafter.kind, sizes, target.embedding, target.head_weight, ids).to(device)
    drafter, artifact = load_trainable(
        config.drafter.init, TargetTensors(target.embedding, target.head_weight)
    )
    check_target(artifact, fingerprint, target=config.target)
    if subset is not None and drafter.target_ids.tolist() != subset.ids.tolist():
        raise MismatchError(
            "drafter.init drafts over another vocabulary",
            got=f"{len(drafter.target_ids):,} other ids",
            expected=f"the {len(subset.ids):,} ids of {config.drafter.vocab}",
            source=config.drafter.init,
        )
    return drafter


def step_settings(config: TrainConfig) -> StepSettings:
    """How the loss is put together: the configured weights, or the kind's own."""
    feature, token, noise = _PUBLISHED.get(config.drafter.kind, (0.0, 1.0, 0.0))
    ttt = config.ttt
    heads = tuple((name, head.weight) for name, head in configured(config.heads).items())
    if config.drafter.freeze and not heads:
        raise UsageError(
            "drafter.freeze leaves nothing to train",
            expected=" or ".join(f"heads.{key}" for key in KINDS),
            remedy="name a head, or leave drafter.freeze off",
        )
    return StepSettings(
        decay=ttt.decay,
        token_weight=token if ttt.token_weight is None else ttt.token_weight,
        feature_weight=feature if ttt.feature_weight is None else ttt.feature_weight,
        feature_noise=noise if ttt.feature_noise is None else ttt.feature_noise,
        head_weights=heads,
        freeze=config.drafter.freeze,
        attention=config.memory.attention,
        checkpointing=config.memory.checkpointing,
        loss=LossOptions(config.memory.loss, config.memory.chunk_mb),
    )


def identity_of(config: TrainConfig, data_digest: str, fingerprint: str) -> dict[str, Any]:
    """What must be equal for a run to be continued: everything that changes a weight, nothing that does not.

    The number of processes and the size of micro-batches are not among it: they divide the same batch.
    """
    body = config.model_dump(mode="json")
    flat = {
        f"{section}.{key}": value
        for section in ("drafter", "heads", "ttt", "optim", "memory")
        for key, value in body[section].items()
        if (section, key) != ("optim", "micro_batch_size")
    }
    flat["run.seed"] = config.run.seed
    flat["data"] = data_digest
    flat["target"] = fingerprint
    if config.drafter.vocab is not None:
        flat["drafter.vocab"] = load_subset(config.drafter.vocab).digest()
    if config.drafter.init is not None:
        flat["drafter.init"] = drafter_digest(config.drafter.init)
        # Beside the weights' digest: some sizes, such as where norms stand, shape no tensor.
        flat["drafter.init sizes"] = native_sizes(config.drafter.init).to_dict()
    return json.loads(json.dumps(flat))


def check_sampling(config: TrainConfig, vocab_size: int) -> None:
    """Refuse more candidates than there are tokens, before anything is loaded.

    Raises:
        UsageError: see the message.
    """
    if config.memory.candidates is not None:
        check_candidates(config.memory.candidates, vocab_size, source="memory.candidates")


def draft_vocabulary(config: DrafterConfig, tokenizer: TextTokenizer) -> VocabSubset | None:
    """The subset that ``drafter.vocab`` names, checked to be of this tokenizer."""
    if config.vocab is None:
        return None
    subset = load_subset(config.vocab)
    subset.check_tokenizer(tokenizer, source=config.vocab)
    return subset


def sizes_of(config: DrafterConfig, target: dict[str, Any], subset: VocabSubset | None) -> Any:
    """Sizes of the drafter: those of ``drafter.init``, else the target's where the configuration leaves them out.

    Raises:
        MismatchError: the target's configuration lacks a size, the subset is of another vocabulary, or
            ``drafter.init`` is of another kind.
        ConfigError: the configuration contradicts ``drafter.init``.
    """
    vocab = int(target.get("vocab_size") or 0)
    if subset is not None and subset.vocab_size > vocab:
        raise MismatchError(
            "the draft vocabulary is larger than the target's",
            got=f"ids up to {subset.vocab_size - 1}",
            expected=f"below {vocab}",
            source=config.vocab,
        )
    rows = None
    if config.head == "own":
        rows = vocab if subset is None else len(subset.ids)
    wishes = {
        "draft_vocab_size": rows,
        "aux_layers": tuple(config.aux_layers) if config.aux_layers else None,
        "intermediate_size": config.intermediate_size,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "medusa_heads": config.medusa_heads,
    }
    if config.init is None:
        return drafter_sizes(config.kind, target, **wishes)
    sizes = native_sizes(config.init)
    if sizes.kind != config.kind:
        raise MismatchError(
            "drafter.init is of another kind",
            got=sizes.kind,
            expected=f"drafter.kind {config.kind}",
            source=config.init,
        )
    check_wishes(sizes, wishes, source=config.init)
    return sizes
