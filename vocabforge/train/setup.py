"""From a configuration to a :class:`~vocabforge.train.loop.Trainer`: load, check that all fits, assemble."""

from __future__ import annotations

import json
from typing import Any

import torch

from ..core.distributed import world_size
from ..core.errors import MismatchError, UsageError
from ..core.files import atomic_write_json, check_run_folder
from ..core.progress import say
from ..corpus.tokenizer import TextTokenizer, load_tokenizer
from ..models.device import choose_device
from ..models.eagle3 import Eagle3Config, Eagle3Drafter
from ..models.fingerprint import target_fingerprint
from ..models.rope import parse_rope
from ..models.target import HFTarget, check_tokenizer_fits, default_aux_layers, read_target_config
from ..vocab.subset import VocabSubset, load_subset
from .config import DrafterConfig, TrainConfig
from .data import prepare, write_heldout_prompts
from .loop import Trainer, set_threads
from .start import start_from_target

HELDOUT_PROMPTS = "heldout_prompts.jsonl"
CALIBRATION_ROWS = 4


def plan(config: TrainConfig) -> dict[str, Any]:
    """The resolved configuration and what would be done, without loading weights or data.

    Raises:
        DataError: the target or its tokenizer cannot be read.
        UsageError: launched as more than one process.
    """
    check_single_process()
    check_run_folder(config.output)
    target = read_target_config(config.target)
    tokenizer = load_tokenizer(config.tokenizer or config.target)
    sizes = drafter_config(config.drafter, target, _subset(config.drafter, tokenizer))
    drafter = Eagle3Drafter(sizes, *(torch.empty(sizes.vocab_size, sizes.hidden_size, device="meta"),) * 2)
    tokens = config.optim.steps * config.optim.batch_size * config.data.sequence_length
    return {
        "config": config.model_dump(mode="json"),
        "target": {"path": str(config.target), "architectures": target.get("architectures")},
        "tokenizer": {"path": str(tokenizer.source), "vocab_size": tokenizer.vocab_size},
        "drafter": {**sizes.to_dict(), "trained_parameters": sum(p.numel() for p in drafter.parameters())},
        "device": str(choose_device(config.run.device)),
        "tokens_at_most": tokens,
        "writes": [
            str(config.output / name) for name in ("drafter", "checkpoints", "metrics.jsonl", HELDOUT_PROMPTS)
        ],
    }


def check_single_process() -> None:
    """Drafter training runs in one process; more would each train a drafter of their own.

    Raises:
        UsageError: launched as more than one process.
    """
    if world_size() > 1:
        raise UsageError(
            "train-drafter runs in one process in this version",
            got=f"{world_size()} processes",
            expected="accelerate launch --num_processes 1",
        )


def build_trainer(config: TrainConfig) -> Trainer:
    """Load target, tokenizer and data, and assemble the drafter.

    Raises:
        VocabForgeError: anything missing, damaged, or not belonging together.
    """
    check_single_process()
    device = choose_device(config.run.device)
    if device.type == "cpu":
        set_threads(config)
    torch.manual_seed(config.run.seed)
    check_run_folder(config.output)
    raw = read_target_config(config.target)
    tokenizer = load_tokenizer(config.tokenizer or config.target)
    subset = _subset(config.drafter, tokenizer)
    sizes = drafter_config(config.drafter, raw, subset)
    target = HFTarget.load(config.target, aux_layers=sizes.aux_layers, device=device)
    check_tokenizer_fits(
        tokenizer.vocab_size, target.vocab_size, tokenizer=tokenizer.source, target=config.target
    )
    if config.data.sequence_length > sizes.max_position_embeddings:
        raise UsageError(
            "data.sequence_length is longer than the target's context",
            got=config.data.sequence_length,
            expected=f"at most {sizes.max_position_embeddings}",
            source=config.target / "config.json",
        )
    window = raw.get("sliding_window") if raw.get("use_sliding_window", True) else None
    if window is not None and config.data.sequence_length > window:
        raise UsageError(
            "data.sequence_length is longer than the target's sliding window",
            got=config.data.sequence_length,
            expected=f"at most {window}",
            source=config.target / "config.json",
        )
    data = prepare(config.data, tokenizer)
    say(
        f"{len(data.train):,} packed rows of {config.data.sequence_length} tokens ({data.train.fill:.0%} full), "
        f"{len(data.heldout)} held out; {data.train.cut_sequences} documents cut to the row's length"
    )
    ids = None if subset is None else torch.from_numpy(subset.ids)
    drafter = Eagle3Drafter(sizes, target.embedding, target.head_weight, ids).to(device)
    write_heldout_prompts(config.output / HELDOUT_PROMPTS, data, tokenizer, config.data)
    atomic_write_json(config.output / "config.json", config.model_dump(mode="json"))
    fingerprint = target_fingerprint(config.target)
    identity = identity_of(config, data.digest(), fingerprint)
    meta = {
        "target_fingerprint": fingerprint,
        "target_name": config.target.name,
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "eos_ids": list(tokenizer.eos_ids),
    }
    trainer = Trainer(config, target, drafter, data, device, identity, meta)
    start_from_target(drafter, trainer.capture("train", list(range(min(len(data.train), CALIBRATION_ROWS)))))
    return trainer


def identity_of(config: TrainConfig, data_digest: str, fingerprint: str) -> dict[str, Any]:
    """What must be equal for a run to be continued: everything that changes a weight, nothing that does not."""
    body = config.model_dump(mode="json")
    flat = {
        f"{section}.{key}": value
        for section in ("drafter", "ttt", "optim")
        for key, value in body[section].items()
    }
    flat["run.seed"] = config.run.seed
    flat["run.mixed_precision"] = config.run.mixed_precision
    flat["data"] = data_digest
    flat["target"] = fingerprint
    if config.drafter.vocab is not None:
        flat["drafter.vocab"] = load_subset(config.drafter.vocab).digest()
    return json.loads(json.dumps(flat))


def _subset(config: DrafterConfig, tokenizer: TextTokenizer) -> VocabSubset | None:
    if config.vocab is None:
        return None
    subset = load_subset(config.vocab)
    subset.check_tokenizer(tokenizer, source=config.vocab)
    return subset


def drafter_config(config: DrafterConfig, target: dict[str, Any], subset: VocabSubset | None) -> Eagle3Config:
    """Sizes of the drafter: the target's where the configuration leaves them out.

    Raises:
        MismatchError: the target's configuration lacks a size, or the subset is of another vocabulary.
    """
    try:
        hidden, heads, vocab = (int(target[k]) for k in ("hidden_size", "num_attention_heads", "vocab_size"))
        layers = int(target["num_hidden_layers"])
        intermediate = int(config.intermediate_size or target["intermediate_size"])
    except (KeyError, TypeError, ValueError) as error:
        raise MismatchError(
            "the target's config.json lacks a size that a drafter needs", got=f"no usable {error}"
        ) from error
    if subset is not None and subset.vocab_size > vocab:
        raise MismatchError(
            "the draft vocabulary is larger than the target's",
            got=f"ids up to {subset.vocab_size - 1}",
            expected=f"below {vocab}",
            source=config.vocab,
        )
    aux_layers = tuple(config.aux_layers or default_aux_layers(layers))
    if not all(0 <= layer < layers for layer in aux_layers):
        raise MismatchError(
            "the target has no such layers",
            got=f"drafter.aux_layers {list(aux_layers)} (0-based)",
            expected=f"0 to {layers - 1}",
        )
    rows = None
    if config.head == "own":
        rows = vocab if subset is None else len(subset.ids)
    heads = config.num_heads or heads
    return Eagle3Config(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=heads,
        num_kv_heads=config.num_kv_heads or int(target.get("num_key_value_heads") or heads),
        head_dim=int(target.get("head_dim") or hidden // heads),
        vocab_size=vocab,
        draft_vocab_size=rows,
        aux_layers=aux_layers,
        max_position_embeddings=int(target.get("max_position_embeddings") or 2048),
        rms_norm_eps=max(float(target.get("rms_norm_eps") or 1e-5), 1e-6),
        rope=parse_rope(target, 10_000.0, "the target's config.json"),
    )
