"""Draft heads that are trained in the loop of ``train-drafter``: made from the configuration, used, saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core.artifact import open_artifact
from ...models.drafters.interface import Drafter
from ...models.heads.io import HeadOwner, drafter_digest, save_head
from ...models.heads.low_rank import check_shortlist
from ...models.heads.registry import DraftHead, HeadOptions, base_of, build_head
from ...models.heads.scorer import LowRankScorer
from ..config import HeadsConfig, LowRankConfig

# key of HeadsConfig and of the ModuleDict -> row of models.heads.HEADS
KINDS = {"ranker": "ranker", "small_ranker": "ranker", "low_rank": "low-rank"}
FOLDER = "heads"
_RANK_SHARE = 8


def head_name(key: str) -> str:
    """Name of a head in reports, and its folder."""
    return key.replace("_", "-")


def configured(config: HeadsConfig) -> dict[str, LowRankConfig]:
    """The heads that a configuration asks for, by key."""
    found = {key: getattr(config, key) for key in KINDS}
    return {key: head for key, head in found.items() if head is not None}


def make_heads(config: HeadsConfig, target_head: Tensor, *, seed: int) -> nn.ModuleDict:
    """The configured scorers, in fp32 on the target's device; empty without any.

    Args:
        target_head: (V, H), which ``init: svd`` factors; ``meta`` gives scorers without values.
        seed: run seed; each head draws from its own stream.

    Raises:
        ConfigError: a rank outside 1 to H.
        UsageError: a ranker's shortlist above V.
    """
    made = nn.ModuleDict()
    vocab_size, hidden_size = target_head.shape
    for place, (key, head) in enumerate(configured(config).items()):
        if "shortlist" in head.model_fields_set:
            check_shortlist(options_of(key, head).shortlist, vocab_size, source=f"heads.{key}.shortlist")
        scorer = LowRankScorer(hidden_size, vocab_size, head.rank or max(1, hidden_size // _RANK_SHARE))
        scorer = scorer.to(target_head.device)
        if target_head.is_meta:
            pass
        elif head.init == "svd":
            scorer.init_from_head(target_head.detach(), seed + place)
        else:
            scorer.init_random(seed + place)
        made[key] = scorer
    return made


@torch.no_grad()
def draft_heads(
    drafter: Drafter, modules: Mapping[str, nn.Module], config: HeadsConfig
) -> dict[str, DraftHead]:
    """Decoding heads by name, over a drafter and the modules that :func:`make_heads` made, as they are now."""
    settings = configured(config)
    base = base_of(drafter)
    return {
        head_name(key): build_head(KINDS[key], base, module, options_of(key, settings[key]))
        for key, module in modules.items()
    }


def is_ranker(key: str) -> bool:
    """Whether a head hands a shortlist to the LM head."""
    return KINDS[key] == "ranker"


def options_of(key: str, config: LowRankConfig) -> HeadOptions:
    """How a configured head is used in decoding."""
    return HeadOptions(shortlist=config.shortlist) if is_ranker(key) else HeadOptions()


def save_heads(
    output: Path,
    modules: Mapping[str, nn.Module],
    config: HeadsConfig,
    *,
    drafter: Path,
    meta: Mapping[str, Any],
    resolved: Mapping[str, Any] | None = None,
) -> dict[str, Path]:
    """Write ``output/heads/NAME`` for every head, bound to the drafter artefact; returns the folders by name.

    Args:
        drafter: the finished drafter's folder.
        meta: has ``target_fingerprint`` and ``tokenizer_fingerprint``.
        resolved: the run's configuration.
    """
    owner = HeadOwner(
        drafter_digest(drafter), str(meta["target_fingerprint"]), str(meta["tokenizer_fingerprint"])
    )
    parents = {"drafter": open_artifact(drafter, verify=False).content_hash}
    written = {}
    for key, head in configured(config).items():
        facts = {**meta, "weight": head.weight, "init": head.init}
        if is_ranker(key):
            facts["shortlist"] = head.shortlist
        path = output / FOLDER / head_name(key)
        save_head(
            path, KINDS[key], modules[key], owner, facts, parents=parents, config=resolved, overwrite=True
        )
        written[head_name(key)] = path
    return written
