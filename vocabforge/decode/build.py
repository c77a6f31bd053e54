"""From folders to decoders: load the target once, each drafter once, and name the methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..core.artifact import Artifact
from ..core.errors import UsageError
from ..core.progress import say
from ..corpus.tokenizer import load_tokenizer
from ..export.formats import load_drafter, restrict
from ..models.device import choose_device
from ..models.drafter import Drafter
from ..models.drafter_io import TargetTensors
from ..models.fingerprint import target_fingerprint
from ..models.head_io import HeadOwner, drafter_digest
from ..models.heads import DraftHead, exact_head
from ..models.lean import LeanModel, load_target
from ..models.target import check_tokenizer_fits
from .build_heads import HeadRequest, NamedHead, describe, heads_of, load_heads
from .engine import FIRST_POSITIONS, Decoder
from .proposers import make_proposer
from .result import Generator
from .tree import TreeSettings

PLAIN = "plain"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Method:
    """One way of decoding, by name; ``head`` describes its draft head where that is an artefact of its own."""

    name: str
    generator: Generator
    description: str
    head: str | None = None


def build_methods(
    target: Path,
    drafters: Sequence[str] = (),
    vocabs: Sequence[str] = (),
    methods: Sequence[str] = (),
    *,
    tokenizer: Path | None = None,
    device: str | None = None,
    dtype: str = "float32",
    depth: int | None = None,
    topk: int | None = None,
    total_nodes: int | None = None,
    heads: HeadRequest | None = None,
) -> list[Method]:
    """Plain decoding, each drafter, each with each draft vocabulary and each with its draft heads.

    Args:
        target: Hugging Face folder.
        drafters: ``DIR`` or ``LABEL=DIR``; the method is named after the label, else the folder.
        vocabs: the same for subset artefacts; the method is named ``drafter+vocab``.
        methods: keep only these names (plain decoding is always kept and first).
        tokenizer: checked against the target; default: the target's folder.
        depth, topk, total_nodes: draft tree; see :class:`~vocabforge.decode.tree.TreeSettings`.
        heads: draft-head artefacts; each goes to the drafter it was trained on, as ``drafter+head``.

    Raises:
        VocabForgeError: anything missing, damaged, unknown, or not belonging together.
    """
    model = _load_target(target, tokenizer, device, dtype)
    tree = tree_settings(depth, topk, total_nodes)  # told before anything is loaded
    extra = _draft_heads(heads, drafters, target, tokenizer, model, tree.levels)
    found = [Method(PLAIN, Decoder(model), "one token a target forward")]
    for label, path in map(labelled, drafters):
        drafter, artifact = load_drafter(path, TargetTensors(model.embedding, model.lm_head_weight), target)
        _check_tokenizer_of(artifact, tokenizer or target)
        settings = tree_settings(depth, topk, total_nodes, drafter.max_steps)
        found.append(_method(label, model, drafter, settings))
        for vocab_label, vocab in map(labelled, vocabs):
            found.append(
                _method(f"{label}+{vocab_label}", model, restrict(drafter, vocab, artifact), settings)
            )
        for head in extra.get(path, ()):
            found.append(_method(f"{label}+{head.label}", model, drafter, settings, head))
    names = [method.name for method in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            "two methods have one name", got=", ".join(twice), remedy="name them: --drafter LABEL=DIR"
        )
    unknown = [name for name in methods if name not in names]
    if unknown:
        raise UsageError(
            "there is no such method in this run", got=", ".join(unknown), expected=", ".join(names)
        )
    return [method for method in found if not methods or method.name in (PLAIN, *methods)]


def tree_settings(
    depth: int | None, topk: int | None, total_nodes: int | None, max_levels: int | None = None
) -> TreeSettings:
    """Tree settings with the defaults where nothing is given.

    Args:
        max_levels: levels that the drafter can fill; the default depth stays within them and within the nodes
            given, the default number of nodes within what depth and width allow.
    """
    default = TreeSettings()
    topk = default.topk if topk is None else topk
    if depth is None:
        levels = [default.levels, max_levels or default.levels, (total_nodes or default.total_nodes) - 1]
        depth = max(min(levels), 1) - 1
    if total_nodes is None:  # a narrow tree may not have as many
        total_nodes = min(default.total_nodes, topk + depth * topk**2 + 1)
    return TreeSettings(topk, depth, total_nodes)


def make_head(drafter: Drafter) -> DraftHead:
    """The head that a drafter was saved with: the target's, its own full one, or a static subset."""
    return exact_head(drafter)


def _method(
    name: str, model: LeanModel, drafter: Drafter, settings: TreeSettings, named: NamedHead | None = None
) -> Method:
    head = make_head(drafter) if named is None else named.over(drafter)
    context = min(model.config.max_positions, FIRST_POSITIONS)
    decoder = Decoder(model, make_proposer(drafter, head, settings, context))
    extra = None if named is None else describe(named, head)
    words = extra or f"draft vocabulary of {head.size:,} tokens"
    tree = f"{drafter.label} tree of {settings.total_nodes} nodes to depth {settings.depth}"
    return Method(name, decoder, f"{tree}, {words}", extra)


def _draft_heads(
    heads: HeadRequest | None,
    drafters: Sequence[str],
    target: Path,
    tokenizer: Path | None,
    model: LeanModel,
    steps: int,
) -> dict[Path, list[NamedHead]]:
    """The draft heads of each drafter's folder, checked against what they were trained for."""
    if heads is None:
        return {}
    named = [labelled(text) for text in heads.given]
    loaded = load_heads(heads, named, steps=steps, device=model.device, dtype=model.dtype)
    if not loaded:
        return {}
    if not drafters:
        raise UsageError("--head belongs to a drafter", expected="--drafter DIR beside it")
    prints = target_fingerprint(target), load_tokenizer(tokenizer or target).fingerprint
    paths = [path for _, path in map(labelled, drafters)]
    return heads_of(loaded, {path: HeadOwner(drafter_digest(path), *prints) for path in paths})


def _load_target(path: Path, tokenizer: Path | None, device: str | None, dtype: str) -> LeanModel:
    if dtype not in DTYPES:
        raise UsageError("there is no such dtype", got=dtype, expected=", ".join(DTYPES))
    model = load_target(path, dtype=DTYPES[dtype], device=choose_device(device))
    loaded = load_tokenizer(tokenizer or path)
    check_tokenizer_fits(loaded.vocab_size, model.config.vocab_size, tokenizer=loaded.source, target=path)
    return model


def _check_tokenizer_of(artifact: Artifact | None, tokenizer: Path) -> None:
    """Other ids with the right sizes would only lower acceptance, in silence: say so."""
    expected = artifact.meta.get("tokenizer_fingerprint") if artifact is not None else None
    if expected and expected != load_tokenizer(tokenizer).fingerprint:
        say(
            f"Warning: the drafter was trained with another tokenizer than {tokenizer}; "
            "expect a poor acceptance."
        )


def labelled(text: str) -> tuple[str, Path]:
    """``LABEL=DIR`` or ``DIR``."""
    label, separator, folder = text.partition("=")
    if separator and label and not Path(text).exists():
        return label, Path(folder)
    path = Path(text)
    name = path.resolve().name
    return (path.resolve().parent.name if name == "drafter" else name), path
