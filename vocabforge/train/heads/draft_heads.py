"""Draft heads trained by ``train-drafter``: creation from the configuration, use, saving."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core.artifact import open_artifact
from ...core.errors import MismatchError, UsageError
from ...corpus.tokenizer.tokenizer import TextTokenizer, check_fingerprint
from ...models.drafters.interface import Drafter, is_autoregressive
from ...models.drafters.parallel import is_parallel
from ...models.drafters.registry import drafter_class
from ...models.heads.io import HeadOwner, drafter_digest, save_head
from ...models.heads.low_rank import check_shortlist
from ...models.heads.registry import DraftHead, HeadOptions, base_of, build_head
from ...models.heads.router import Router, default_budgets
from ...models.heads.scorer import LowRankScorer
from ...models.target.head import open_head
from ...models.target.hf import check_tokenizer_fits
from ...vocab.clusters.clusters import Clusters, load_clusters
from ..config import HeadsConfig, LowRankConfig, RouterConfig

# Key of HeadsConfig and of the ModuleDict -> row of models.heads.HEADS.
KINDS = {"ranker": "ranker", "small_ranker": "ranker", "low_rank": "low-rank", "router": "router"}
ROUTER = "router"
FOLDER = "heads"
_RANK_SHARE = 8


def head_name(key: str) -> str:
    """Return the name of a head in reports, which is also its folder."""
    return key.replace("_", "-")


def configured(config: HeadsConfig) -> dict[str, LowRankConfig | RouterConfig]:
    """Return the configured heads by key."""
    heads = {key: getattr(config, key) for key in KINDS}
    return {key: head for key, head in heads.items() if head is not None}


def make_heads(config: HeadsConfig, target_head: Tensor, *, seed: int) -> nn.ModuleDict:
    """Create the configured scorers and router, in fp32 on the target's device.

    Args:
        target_head: (V, H), factored by ``init: svd``; on ``meta`` the scorers have no values.
        seed: run seed; each head uses its own random stream.

    Raises:
        ConfigError: a rank outside 1 to H.
        UsageError: a ranker's shortlist above V.
    """
    made = nn.ModuleDict()
    vocab_size, hidden_size = target_head.shape
    for place, (key, head) in enumerate(configured(config).items()):
        if isinstance(head, RouterConfig):
            clusters = load_clusters(head.clusters)
            assignment = torch.from_numpy(clusters.assignment)
            router = Router(hidden_size, assignment, len(clusters), width=head.width, depth=head.depth)
            router = router.to(target_head.device)
            if not target_head.is_meta:
                router.init(seed + place, head.top_n)
            made[key] = router
            continue
        if "shortlist" in head.model_fields_set:
            check_shortlist(shortlist_of(key, head), vocab_size, source=f"heads.{key}.shortlist")
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
    """Return heads by name over a drafter and the modules of :func:`make_heads` with their current weights.

    The heads do not use compiled ops, so they keep no copy of the drafter's head.
    """
    settings = configured(config)
    base = base_of(drafter)
    options = {key: HeadOptions(shortlist=shortlist_of(key, settings[key]), ops=False) for key in modules}
    return {
        head_name(key): build_head(KINDS[key], base, module, options[key]) for key, module in modules.items()
    }


def shortlist_of(key: str, config: LowRankConfig | RouterConfig) -> int | None:
    """Return the number of candidates that a ranker passes to the LM head; None for other heads."""
    if isinstance(config, LowRankConfig) and KINDS[key] == "ranker":
        return config.shortlist
    return None


def check_routable(kind: str) -> None:
    """Check that a kind of drafter has input states for a router: it is autoregressive or a block drafter."""
    drafter = drafter_class(kind)
    if not (is_autoregressive(drafter) or is_parallel(drafter)):
        raise UsageError(
            f"a {drafter.label} drafter is fed nothing, so there is no state for a router to read",
            got=f"drafter.kind {kind}",
            expected="an EAGLE or block drafter",
            remedy="train such a drafter, or another draft head",
        )


def check_clusters(clusters: Clusters, source: Path, tokenizer: TextTokenizer, target: Path) -> None:
    """Check that clusters were made with this tokenizer and the LM head of the ``target`` folder.

    Raises:
        MismatchError: they were made with another vocabulary or LM head.
    """
    check_fingerprint(
        tokenizer.fingerprint,
        clusters.fingerprint,
        expected_from=f"the tokenizer {tokenizer.source}",
        got_from=f"the clusters {source}",
        remedy="run cluster-vocab with this target's tokenizer",
    )
    head, tokens = open_head(target), tokenizer.vocab_size
    check_tokenizer_fits(tokens, head.item.shape[0], tokenizer=tokenizer.source, target=target)
    if clusters.vocab_size != tokens or clusters.head["width"] != head.item.shape[1]:
        raise MismatchError(
            "the clusters were made from another LM head",
            got=f"{clusters.vocab_size:,} ids of width {clusters.head['width']}",
            expected=f"{tokens:,} ids of width {head.item.shape[1]}",
            source=source,
            remedy="run cluster-vocab with this target",
        )
    clusters.check_head(head.digest(tokens), target)


def save_heads(
    output: Path,
    modules: Mapping[str, nn.Module],
    config: HeadsConfig,
    *,
    drafter: Path,
    meta: Mapping[str, Any],
    resolved: Mapping[str, Any] | None = None,
    decaying: bool = True,
) -> dict[str, Path]:
    """Write every head to ``output/heads/NAME``, bound to the drafter artefact; return the folders by name.

    Args:
        drafter: folder of the finished drafter.
        meta: must contain ``target_fingerprint`` and ``tokenizer_fingerprint``.
        resolved: configuration of the run.
        decaying: see ``default_budgets``.
    """
    owner = HeadOwner(
        drafter_digest(drafter), str(meta["target_fingerprint"]), str(meta["tokenizer_fingerprint"])
    )
    drafter_hash = open_artifact(drafter, verify=False).content_hash
    written = {}
    for key, head in configured(config).items():
        module: Any = modules[key]
        facts, parents = {**meta, "weight": head.weight}, {"drafter": drafter_hash}
        if isinstance(head, RouterConfig):
            parents["clusters"] = open_artifact(head.clusters, verify=False).content_hash
            budgets = default_budgets(module.clusters, decaying=decaying)
            facts |= {"top_n": head.top_n, "detach": head.detach, "budgets": list(budgets)}
        else:
            facts["init"] = head.init
            if (shortlist := shortlist_of(key, head)) is not None:
                facts["shortlist"] = shortlist
        path = output / FOLDER / head_name(key)
        save_head(path, KINDS[key], module, owner, facts, parents=parents, config=resolved, overwrite=True)
        written[head_name(key)] = path
    return written
