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
from ..models.drafter_io import TargetTensors
from ..models.eagle3 import Eagle3Drafter
from ..models.heads import DraftHead, FullHead, StaticHead
from ..models.lean import LeanModel, load_target
from ..models.target import check_tokenizer_fits
from .engine import FIRST_POSITIONS, Decoder
from .proposer_eagle3 import Eagle3Proposer
from .result import Generator
from .tree import TreeSettings

PLAIN = "plain"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Method:
    """One way of decoding, by name."""

    name: str
    generator: Generator
    description: str


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
) -> list[Method]:
    """Plain decoding, each drafter, and each drafter restricted to each draft vocabulary.

    Args:
        target: Hugging Face folder.
        drafters: ``DIR`` or ``LABEL=DIR``; the method is named after the label, else the folder.
        vocabs: the same for subset artefacts; the method is named ``drafter+vocab``.
        methods: keep only these names (plain decoding is always kept and first).
        tokenizer: checked against the target; default: the target's folder.
        depth, topk, total_nodes: draft tree; see :class:`~vocabforge.decode.tree.TreeSettings`.

    Raises:
        VocabForgeError: anything missing, damaged, unknown, or not belonging together.
    """
    model = _load_target(target, tokenizer, device, dtype)
    settings = tree_settings(depth, topk, total_nodes)
    found = [Method(PLAIN, Decoder(model), "one token a target forward")]
    for label, path in map(_labelled, drafters):
        drafter, artifact = load_drafter(path, TargetTensors(model.embedding, model.lm_head_weight), target)
        _check_tokenizer_of(artifact, tokenizer or target)
        found.append(_method(label, model, drafter, settings))
        for vocab_label, vocab in map(_labelled, vocabs):
            found.append(
                _method(f"{label}+{vocab_label}", model, restrict(drafter, vocab, artifact), settings)
            )
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


def tree_settings(depth: int | None, topk: int | None, total_nodes: int | None) -> TreeSettings:
    """Tree settings with the defaults where nothing is given."""
    given = {"depth": depth, "topk": topk, "total_nodes": total_nodes}
    return TreeSettings(**{name: value for name, value in given.items() if value is not None})


def make_head(drafter: Eagle3Drafter) -> DraftHead:
    """The head that a drafter was saved with: the target's, its own full one, or a static subset."""
    if drafter.head_weight.shape[0] == drafter.config.vocab_size:
        return FullHead(drafter.head_weight)
    return StaticHead(drafter.head_weight, drafter.target_ids)


def _method(name: str, model: LeanModel, drafter: Eagle3Drafter, settings: TreeSettings) -> Method:
    head = make_head(drafter)
    decoder = Decoder(
        model, Eagle3Proposer(drafter, head, settings, min(model.config.max_positions, FIRST_POSITIONS))
    )
    return Method(name, decoder, f"EAGLE-3 tree, draft vocabulary of {head.size:,} tokens")


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


def _labelled(text: str) -> tuple[str, Path]:
    """``LABEL=DIR`` or ``DIR``."""
    label, separator, folder = text.partition("=")
    if separator and label and not Path(text).exists():
        return label, Path(folder)
    path = Path(text)
    name = path.resolve().name
    return (path.resolve().parent.name if name == "drafter" else name), path
