"""Build a :class:`~vocabforge.train.trainer.Trainer` from a configuration: load, check, assemble."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..core.artifact import open_artifact
from ..core.distributed import Group
from ..core.errors import MismatchError, UsageError
from ..core.files import check_run_folder
from ..corpus.prepared.artifact import PreparedData
from ..corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from ..models.checkpoint import checkpoint_files, read_headers
from ..models.drafters.interface import Drafter
from ..models.drafters.io import check_target, load_trainable, native_sizes
from ..models.drafters.registry import check_wishes, drafter_sizes, new_drafter
from ..models.heads.io import drafter_digest
from ..models.rope import RopeSettings
from ..models.target.fingerprint import target_facts, target_fingerprint
from ..models.target.head import TargetTensors
from ..models.target.hf import check_row_length, check_tokenizer_fits
from ..models.target.load import dtype_name, read_target_config
from ..models.target.text_config import text_config
from ..vocab.clusters.clusters import load_clusters
from ..vocab.subset.subset import VocabSubset, load_subset
from .capture.build import build_capture, load_capture_target
from .capture.cache import CachedCapture
from .capture.online import CapturedBatch, to_tensors
from .config import DrafterConfig, TrainConfig
from .data import divide, prepare_together, with_prepared
from .heads.draft_heads import KINDS, check_clusters, check_routable, configured, make_heads
from .machine import device_of, set_threads, uses_bf16
from .monitoring.live import live_acceptance
from .monitoring.trackers import check_trackers
from .parallel.strategy import wanted_strategy
from .step import TrainStep
from .trainer import Trainer


@dataclass(frozen=True)
class Basis:
    """Checked small inputs of a run.

    Attributes:
        config: configuration, completed by prepared data.
        target: content of the target's ``config.json``.
    """

    config: TrainConfig
    target: Mapping[str, Any]
    tokenizer: TextTokenizer
    subset: VocabSubset | None
    sizes: Any


def read_basis(config: TrainConfig, group: Group) -> Basis:
    """Read the small inputs and check that they match before any large input is read.

    Raises:
        VocabForgeError: an input cannot be read, was made with another target or tokenizer, or contradicts
            the configuration.
    """
    divide(config.optim, group.rank, group.size)
    wanted_strategy(config.run.strategy, group)
    check_trackers(config.run.trackers)
    if config.drafter.freeze and not configured(config.heads):
        raise UsageError(
            "drafter.freeze leaves nothing to train",
            expected=" or ".join(f"heads.{key}" for key in KINDS),
            remedy="configure a head, or set drafter.freeze to false",
        )
    config = config.model_copy(update={"data": with_prepared(config.data)})
    check_run_folder(config.output)
    target = read_target_config(config.target)
    rows = int(text_config(target).vocab_size)
    tokenizer = load_tokenizer(config.tokenizer or config.target, rows=rows)
    check_tokenizer_fits(tokenizer.vocab_size, rows, tokenizer=tokenizer.source, target=config.target)
    check_row_length(target, config.data.sequence_length, source=config.target / "config.json")
    subset = None
    if config.drafter.vocab is not None:
        subset = load_subset(config.drafter.vocab, tokenizer.fingerprint, owner=tokenizer.source)
    if config.heads.router is not None:
        check_routable(config.drafter.kind)
    sizes = sizes_of(config.drafter, target, subset)
    return Basis(config, target, tokenizer, subset, sizes)


def identity_of(config: TrainConfig, data_digest: str, fingerprint: str) -> dict[str, Any]:
    """Return all settings that affect the weights and must match on resume; not the division of a batch."""
    body = config.model_dump(mode="json")
    flat = {
        f"{section}.{key}": value
        for section in ("drafter", "heads", "ttt", "optim", "memory")
        for key, value in body[section].items()
        if (section, key) != ("optim", "micro_batch_size")
    }
    if config.heads.router is not None:
        clusters = open_artifact(config.heads.router.clusters, verify=False)
        flat["heads.router"] = {**flat["heads.router"], "clusters": clusters.content_hash}
    flat["run.seed"] = config.run.seed
    flat["data"] = data_digest
    flat["target"] = fingerprint
    if config.drafter.vocab is not None:
        flat["drafter.vocab"] = load_subset(config.drafter.vocab).digest()
    if config.drafter.init is not None:
        flat["drafter.init"] = drafter_digest(config.drafter.init)
        # The digest of the weights is not enough: some settings, such as norm placement, affect no shape.
        flat["drafter.init sizes"] = native_sizes(config.drafter.init).to_dict()
    return json.loads(json.dumps(flat))


def sizes_of(config: DrafterConfig, target: Mapping[str, Any], subset: VocabSubset | None) -> Any:
    """Return the sizes of the drafter from ``drafter.init``, or from the configuration and the target.

    Raises:
        MismatchError: the target lacks a size, the subset has another vocabulary, or the kind differs.
        ConfigError: the configuration contradicts ``drafter.init``.
    """
    vocab = int(text_config(target).vocab_size)
    if subset is not None and subset.vocab_size > vocab:
        raise MismatchError(
            "the draft vocabulary is larger than the target's",
            got=f"ids up to {subset.vocab_size - 1}",
            expected=f"below {vocab}",
            source=config.vocab,
            remedy="select one from counts made with this target's tokenizer",
        )
    rows = None
    if config.head == "own":
        rows = vocab if subset is None else len(subset.ids)
    wishes = config.model_dump(exclude={"kind", "init", "freeze", "head", "vocab", "rope_theta"}) | {
        "draft_vocab_size": rows,
        "aux_layers": tuple(config.aux_layers) if config.aux_layers else None,
        "rope": RopeSettings(config.rope_theta or 10_000.0) if config.rope == "plain" else None,
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
            remedy="set drafter.kind to that of drafter.init",
        )
    check_wishes(sizes, wishes, source=config.init)
    return sizes


CALIBRATION_ROWS = 4
_CALIBRATION_TOKENS = 65_536  # fewer rows if they are long: every process holds their full states


def build_trainer(config: TrainConfig, group: Group | None = None) -> Trainer:
    """Load target, tokenizer and data, and assemble the drafter.

    Args:
        group: launched processes; None: only this process.

    Raises:
        VocabForgeError: an input is missing, damaged or does not match the others.
    """
    group = Group(0, 1) if group is None else group
    device = device_of(config)
    basis = read_basis(config, group)
    config, tokenizer = basis.config, basis.tokenizer
    if device.type == "cpu":
        set_threads(config)
    torch.manual_seed(config.run.seed)
    read_headers(checkpoint_files(config.target))  # before the data, to detect a damaged target early
    data = prepare_together(config.data, config.output, tokenizer, group)
    config = config.model_copy(update={"optim": config.optim.over(len(data.train))})
    fingerprint = target_fingerprint(config.target)
    target = load_capture_target(
        config.target, config.capture, aux_layers=basis.sizes.aux_layers or None, device=device
    )
    rows = {"train": data.train, "heldout": data.heldout}
    captured = build_capture(
        config.capture,
        target,
        rows=rows,
        path=config.target,
        fingerprint=fingerprint,
        owner=f"{config.output.absolute()} {group.rank}",
        reduced=(basis.subset is not None and len(basis.subset.ids) < target.vocab_size)
        or basis.sizes.draft_vocab_size not in (None, target.vocab_size),
    )
    if config.drafter.init is None:
        drafter = _fresh_drafter(basis, target, captured, data, device)
    else:
        drafter = _loaded_drafter(basis, target, fingerprint)
    # Low-rank heads are initialised from the drafter's head if it covers the full vocabulary.
    own = len(drafter.target_ids) == target.vocab_size and not drafter.heads_differ
    factored = (drafter.head_weight if own else target.head_weight).detach()
    if config.heads.router is not None:
        path = config.heads.router.clusters
        check_clusters(load_clusters(path), path, tokenizer, config.target)
    heads = make_heads(config.heads, factored, seed=config.run.seed)
    kept = captured.key.dtype if isinstance(captured, CachedCapture) else dtype_name(target.dtype)
    identity = {
        **identity_of(config, data.digest(), fingerprint),
        "tokenizer": tokenizer.fingerprint,
        "states": f"{dtype_name(target.dtype)}, kept in {kept}",
        "passes": "bf16" if uses_bf16(config, device) else "fp32",
    }
    meta = {
        **target_facts(config.target),
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "eos_ids": list(tokenizer.eos_ids),
    }
    step = TrainStep(
        drafter,
        heads,
        target.head_weight,
        config.ttt,
        config.heads,
        config.memory,
        freeze=config.drafter.freeze,
        transform=target.transform,
    )
    live = None
    if config.run.live.prompts and group.rank == 0:
        live = live_acceptance(
            target,
            data.prompts,
            tokenizer,
            config.run.live,
            chain_steps=config.ttt.steps,
            heads=config.heads,
            folder=config.target,
        )
    return Trainer(
        config=config,
        target=target,
        data=data,
        captured=captured,
        device=device,
        group=group,
        identity=identity,
        step_module=step,
        meta=meta,
        live=live,
    )


def _fresh_drafter(
    basis: Basis, target: Any, captured: Any, data: PreparedData, device: torch.device
) -> Drafter:
    kind, subset = basis.config.drafter.kind, basis.subset
    ids = None if subset is None else torch.from_numpy(subset.ids)
    drafter = new_drafter(kind, basis.sizes, target.embedding, target.head_weight, ids, target.transform).to(
        device
    )
    most = max(1, _CALIBRATION_TOKENS // data.train.length)
    some = list(range(min(len(data.train), CALIBRATION_ROWS, most)))
    batch = captured(to_tensors(data.train, some, device), [("train", row) for row in some])
    start_from_target(drafter, batch)
    return drafter


def _loaded_drafter(basis: Basis, target: Any, fingerprint: str) -> Drafter:
    wanted, subset = basis.config.drafter, basis.subset
    assert wanted.init is not None
    drafter, artifact = load_trainable(
        wanted.init, TargetTensors(target.embedding, target.head_weight, target.transform)
    )
    check_target(artifact, fingerprint, target=basis.config.target)
    if subset is not None and drafter.target_ids.tolist() != subset.ids.tolist():
        raise MismatchError(
            "drafter.init drafts over another vocabulary",
            got=f"{len(drafter.target_ids):,} other ids",
            expected=f"the {len(subset.ids):,} ids of {wanted.vocab}",
            source=wanted.init,
            remedy="leave drafter.vocab out, or replace its head first: vocabforge export --vocab",
        )
    return drafter


@torch.no_grad()
def start_from_target(drafter: Drafter, batch: CapturedBatch) -> None:
    """Initialise the scales of a new drafter from captured rows; see its ``init_from_target``."""
    real = batch.document != 0
    drafter.init_from_target(batch.states(drafter.reads)[real], batch.hidden[real])
