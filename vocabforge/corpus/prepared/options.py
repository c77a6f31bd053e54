"""Everything that determines prepared data: options, tokenizer, chat template, and source contents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ...core.progress import ProgressBar
from ..sources.bytes import ByteSpan
from ..sources.inputs import expand_paths, is_hub, kind_of, split_suffix
from ..tokenizer.tokenizer import TextTokenizer
from .dataset import SequenceOptions
from .packing import Overlong

FORMAT = 3
"""Incremented whenever the same sources and options would give different rows."""
READ_FORMATS = (2, 3)
"""Supported formats of existing files: same layout, but earlier versions read some rows differently."""


@dataclass(frozen=True)
class HeldoutOptions:
    """Options for held-out documents.

    Attributes:
        documents: number of documents to hold out at the end of the training files, without held-out files;
            None for a tenth, 1 to ``MOST``.
        prompts: maximum number of held-out documents that become prompts in Spec-Bench format.
        prompt_tokens: tokens after which a plain text is cut to make a prompt.
    """

    MOST: ClassVar = 64
    documents: int | None = None
    prompts: int = 40
    prompt_tokens: int = 32


@dataclass(frozen=True)
class PrepareOptions:
    """Options that determine the rows, apart from sources and tokenizer; ``length`` is T, tokens per row."""

    length: int
    sequences: SequenceOptions = field(default_factory=SequenceOptions)
    overlong: Overlong = "cut"
    heldout: HeldoutOptions = field(default_factory=HeldoutOptions)

    def to_dict(self) -> dict[str, Any]:
        """Return all options except ``strict``, which never changes the rows."""
        values = json.loads(json.dumps(asdict(self)))
        del values["sequences"]["sources"]["strict"]
        return dict(values)


def source_digests(paths: Sequence[Path | str]) -> list[str]:
    """Return the kind and SHA-256 of each source, in order (for a Hub data set, of its revision)."""
    digests = []
    files = expand_paths(paths)
    size = sum(path.stat().st_size for path in files if not is_hub(path))
    with ProgressBar("scan the sources", size or None, "B") as bar:
        for path in files:
            if is_hub(path):
                from ..sources.hub import hub_digest

                digests.append(f"hub:{hub_digest(str(path), 0, None)}")
                continue
            digest = hashlib.sha256()
            for block in ByteSpan(path).stored_blocks():
                digest.update(block)
                bar.update(len(block))
            digests.append(f"{kind_of(path)}{split_suffix(path)[1]}:{digest.hexdigest()}")
    return digests


def content_key(
    tokenizer: TextTokenizer,
    train: Sequence[Path | str],
    heldout: Sequence[Path | str],
    options: PrepareOptions,
) -> tuple[str, dict[str, Any]]:
    """Return the key, and the data that it hashes."""
    values = options.to_dict()
    if heldout and options.heldout.documents is None:
        # For compatibility with earlier keys; it has no effect.
        values["heldout"]["documents"] = HeldoutOptions.MOST
    body = {
        "format": FORMAT,
        "train": source_digests(train),
        "heldout": source_digests(heldout) if heldout else [],
        "tokenizer": tokenizer_facts(tokenizer),
        "options": values,
    }
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest(), body


def tokenizer_facts(tokenizer: TextTokenizer) -> dict[str, Any]:
    """Return the parts of a tokenizer that determine the rows, with chat templates as SHA-256."""
    return {
        "fingerprint": tokenizer.fingerprint,
        "prefix_ids": list(tokenizer.prefix_ids),
        "eos_ids": list(tokenizer.eos_ids),
        "special_text": dict(tokenizer.special_text),
        "chat_template": tokenizer.templates_digest,
    }
