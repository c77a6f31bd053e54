"""Methods as a command line asks for them, and the folders that they are made of."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.decode.drafting import make_drafter
from tests.worlds import byte_tokenizer, tiny_drafter, tiny_target
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.build.methods import Method, build_methods, grid_specs
from vocabforge.decode.build.models import Models
from vocabforge.decode.spec import MethodGrid
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.heads.io import HeadOwner, drafter_digest, save_head
from vocabforge.models.heads.registry import HeadSizes, RouterHead
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget
from vocabforge.vocab.subset.subset import VocabSubset, save_subset

VOCAB = 261  # of the byte tokenizer
PROMPT = [72, 101] * 4


def grid_methods(
    target: Path,
    drafters: Sequence[str] = (),
    vocabs: Sequence[str] = (),
    *,
    sampled: bool = False,
    dtype: str = "float32",
    device: str | None = None,
    **asked: Any,
) -> list[Method]:
    """Plain decoding and every method of a grid; ``asked``: further options of ``eval``."""
    models = Models(target, device=device, dtype=dtype)
    grid = MethodGrid(drafter=drafters, vocab=vocabs, **asked)
    return build_methods(models, grid_specs(models, grid, sampled=sampled), sampled=sampled)


def methods_of(
    place: Path, *drafters: str, vocabs: Sequence[str] = (), head: Sequence[str] = (), **asked: Any
) -> dict[str, Any]:
    """Methods by name; a drafter, vocabulary or head is a folder of ``place``, or ``name=folder``."""

    def folder(text: str) -> str:
        name, equals, path = text.rpartition("=")
        return f"{name}{equals}{place / path}"

    folders, named, heads = ([folder(text) for text in texts] for texts in (drafters, vocabs, head))
    found = grid_methods(place / "t", folders, named, head=heads, **{"control": "fixed", **asked})
    return {method.name: method for method in found}


def outputs_of(methods: dict[str, Any], count: int = 30) -> dict[str, Any]:
    """What each method generates; all write what plain decoding does."""
    found = {
        name: one.generator.generate(PROMPT, max_new_tokens=count, stop_ids=())
        for name, one in methods.items()
    }
    assert all(one.token_ids == found["plain"].token_ids for one in found.values())
    return found


def check_drafts_alike(target: Path, before: Path, after: Path, vocabs: Sequence[Path] = ()) -> None:
    """A drafter, within a draft vocabulary if there is one, and what was made of it."""
    named, trees = [f"v={one}" for one in vocabs], {"depth": 1, "topk": 3, "total_nodes": 9}
    found = grid_methods(target, [f"a={before}", f"b={after}"], named, **trees, control="fixed")
    made = outputs_of({one.name: one for one in found}, 16)
    assert made["b"].accept_lengths == made["a+v" if vocabs else "a"].accept_lengths


def make_place(place: Path) -> Path:
    """A target and what drafts for it.

    ``t`` and ``small`` models with a tokenizer; drafters ``a`` (also as ``run/drafter``), ``b`` (own head) and ``m``
    (Medusa); heads ``ranker-a``, ``low-rank``, ``router`` of a, ``ranker-b`` of b, ``foreign`` of another target; draft
    vocabularies ``v``, ``w`` (of another tokenizer), ``core`` and ``pafr`` (with a schedule).
    """
    for name, seed in (("t", 0), ("small", 4)):
        tiny_target(place / name, vocab_size=VOCAB, seed=seed)
        byte_tokenizer(place / name)
    target, tokenizer = HFTarget.load(place / "t"), load_tokenizer(place / "t").fingerprint
    meta = {"target_fingerprint": target_fingerprint(place / "t"), "tokenizer_fingerprint": tokenizer}
    ids = torch.arange(1, VOCAB, 3)
    for name, drafter in (
        ("a", tiny_drafter(target)),
        ("b", tiny_drafter(target, seed=7, own_head=len(ids), target_ids=ids)),
        ("m", make_drafter("medusa", place / "t", target, medusa_heads=3)),
    ):
        save_drafter(place / name, drafter, meta, config={"target": str(place / "t")})
    shutil.copytree(place / "a", place / "run" / "drafter")

    scorer = LowRankScorer(32, VOCAB, 8)
    scorer.init_from_head(target.head_weight, 0)
    torch.manual_seed(0)
    router = RouterHead.new_module(HeadSizes(32, VOCAB, clusters=12))
    router.init(1, 5)
    first, second = (HeadOwner(drafter_digest(place / name), *meta.values()) for name in "ab")
    other = HeadOwner(first.drafter, "x" * 64, tokenizer)
    for name, kind, module, owner, options in (
        ("ranker-a", "ranker", scorer, first, {"shortlist": 20}),
        ("ranker-b", "ranker", scorer, second, {"shortlist": 20}),
        ("low-rank", "low-rank", scorer, first, {}),
        ("router", "router", router, first, {"budgets": [4, 2]}),
        ("foreign", "ranker", scorer, other, {}),
    ):
        save_head(place / name, kind, module, owner, options)

    even = np.arange(40, 120, 2, dtype=np.int64)
    ranked = np.random.default_rng(0).permutation(VOCAB - 5)[:60].astype(np.int64)
    for name, tokens, owner, schedule in (
        ("v", even, tokenizer, ()),
        ("w", even, "another", ()),
        ("core", ranked, tokenizer, ()),
        ("pafr", ranked, tokenizer, (60, 30, 9)),
    ):
        subset = VocabSubset(np.sort(tokens), tokens, VOCAB, owner, schedule=schedule)
        save_subset(subset, place / name)
    return place
