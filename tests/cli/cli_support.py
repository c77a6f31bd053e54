"""A tiny target with a tokenizer, a drafter and vocabularies for it, and ways to call the commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from click.testing import Result
from typer.testing import CliRunner

from tests.corpus.tokenizer_factory import byte_tokenizer
from tests.support import ROOT, tiny_drafter, tiny_target
from vocabforge.cli import COMMANDS
from vocabforge.cli.app import build_app
from vocabforge.core.registry import load_attribute

ROWS = 264  # three more than the byte tokenizer has ids


class World(NamedTuple):
    """Folders that belong together, and the texts to train on."""

    target: Path
    drafter: Path
    vocab: Path
    text: Path


def invoke(command: str, *arguments: object) -> Result:
    """A command in this process."""
    app = build_app({command: load_attribute(COMMANDS[command])}, list(COMMANDS))
    return CliRunner().invoke(app, [command, *map(str, arguments)], catch_exceptions=True)


def call(*arguments: object, code: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own, as a user starts it; ``code`` replaces ``-m vocabforge``."""
    start = ["-m", "vocabforge"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *start, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def make_target(folder: Path, *, seed: int = 0, **changes: object) -> Path:
    """Weights and tokenizer in one folder."""
    tiny_target(
        folder, seed=seed, **{"vocab_size": ROWS, "eos_token_id": 257, "bos_token_id": 256, **changes}
    )
    (folder / "generation_config.json").unlink(missing_ok=True)
    return byte_tokenizer(folder)


def make_drafter(folder: Path, target: Path, **options: object) -> Path:
    """A random drafter artefact that records its target and tokenizer."""
    from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
    from vocabforge.models.drafters.io import save_drafter
    from vocabforge.models.target.fingerprint import target_fingerprint
    from vocabforge.models.target.hf import HFTarget

    meta = {
        "target_fingerprint": target_fingerprint(target),
        "target_name": target.name,
        "tokenizer_fingerprint": load_tokenizer(target).fingerprint,
        "eos_ids": [257],
    }
    drafter = tiny_drafter(HFTarget.load(target), **options)
    save_drafter(folder, drafter, meta, config={"target": str(target)})
    return folder


def make_vocab(folder: Path, tokenizer: Path, *, size: int = 64, eos: bool = True) -> Path:
    """A subset artefact of the first ids and, if wanted, the end token."""
    import numpy as np

    from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
    from vocabforge.vocab.subset.subset import VocabSubset, save_subset

    loaded = load_tokenizer(tokenizer)
    ids = np.array([*range(size - 1), 257 if eos else size - 1])
    subset = VocabSubset.from_ranked(ids, vocab_size=loaded.vocab_size, fingerprint=loaded.fingerprint)
    save_subset(subset, folder)
    return folder


def make_world(folder: Path) -> World:
    target = make_target(folder / "target")
    text = folder / "text.txt"
    text.write_text("\n\n".join(f"story {n}: " + "once upon a time " * 8 for n in range(30)), "utf-8")
    return World(target, make_drafter(folder / "drafter", target), make_vocab(folder / "vocab", target), text)


def truncate(file: Path, share: float = 0.5) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])


def edit_json(file: Path, **changes: object) -> None:
    body = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**body, **changes}), "utf-8")


def assert_user_error(result: Result, code: int, *words: str) -> None:
    """An exit code, one message of ours, and no traceback."""
    assert isinstance(result.exception, (SystemExit, type(None))), repr(result.exception)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    said = " ".join(result.output.split())
    for word in words:
        assert word in said, f"{word!r} not in: {said}"
