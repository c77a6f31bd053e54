"""What decides prepared data: options, tokenizer, chat template, and the content of the sources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ...core.files import sha256_file
from ...core.progress import ProgressBar
from ..sources.bytes import unreadable
from ..sources.inputs import expand_paths, is_hub, kind_of, split_suffix
from ..tokenizer.tokenizer import TextTokenizer
from .dataset import SequenceOptions
from .packing import Overlong

FORMAT = 3
"""Raised whenever the same sources and options would give other rows than before."""
READ_FORMATS = (2, 3)
"""Formats whose files are read: of the same layout, made from rows that earlier versions read otherwise."""


@dataclass(frozen=True)
class HeldoutOptions:
    """What is set aside: ``documents`` at the end of the training files when none are given apart (None: a tenth, 1 to
    ``MOST``); of these at most ``prompts`` become prompts in Spec-Bench format, plain texts cut behind
    ``prompt_tokens`` tokens.
    """

    MOST: ClassVar = 64
    documents: int | None = None
    prompts: int = 40
    prompt_tokens: int = 32


@dataclass(frozen=True)
class PrepareOptions:
    """What decides the rows beside sources and tokenizer; ``length`` is T, tokens a row."""

    length: int
    sequences: SequenceOptions = field(default_factory=SequenceOptions)
    overlong: Overlong = "cut"
    heldout: HeldoutOptions = field(default_factory=HeldoutOptions)

    def to_dict(self) -> dict[str, Any]:
        """Everything but ``strict``, which decides whether there is a result, not which."""
        values = json.loads(json.dumps(asdict(self)))
        del values["sequences"]["sources"]["strict"]
        return dict(values)


def source_digests(paths: Sequence[Path | str]) -> list[str]:
    """For each source, in order: how it is read, and SHA-256 of its bytes (of a Hub data set, its revision)."""
    found = []
    files = expand_paths(paths)
    size = sum(path.stat().st_size for path in files if not is_hub(path))
    with ProgressBar("scan the sources", size or None, "B") as bar:
        for path in files:
            if is_hub(path):
                from ..sources.hub import hub_digest

                found.append(f"hub:{hub_digest(str(path), 0, None)}")
            else:
                try:
                    found.append(f"{kind_of(path)}{split_suffix(path)[1]}:{sha256_file(path)}")
                    bar.update(path.stat().st_size)
                except OSError as error:
                    raise unreadable(path, error) from error
    return found


def content_key(
    tokenizer: TextTokenizer,
    train: Sequence[Path | str],
    heldout: Sequence[Path | str],
    options: PrepareOptions,
) -> tuple[str, dict[str, Any]]:
    """The key, and what it is the hash of."""
    values = options.to_dict()
    if heldout and options.heldout.documents is None:
        values["heldout"]["documents"] = (
            HeldoutOptions.MOST
        )  # as earlier versions have it in the key; it decides nothing
    body = {
        "format": FORMAT,
        "train": source_digests(train),
        "heldout": source_digests(heldout) if heldout else [],
        "tokenizer": tokenizer_facts(tokenizer),
        "options": values,
    }
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest(), body


def tokenizer_facts(tokenizer: TextTokenizer) -> dict[str, Any]:
    """What of a tokenizer decides the rows; of the chat templates their SHA-256."""
    return {
        "fingerprint": tokenizer.fingerprint,
        "prefix_ids": list(tokenizer.prefix_ids),
        "eos_ids": list(tokenizer.eos_ids),
        "special_text": dict(tokenizer.special_text),
        "chat_template": tokenizer.templates_digest,
    }
