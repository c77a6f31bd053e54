"""What ``--plan`` says of the rows: how many there are, and how often each would be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.progress import say
from ..corpus.inputs import PACKED_SUFFIXES, expand_paths, kind_of
from ..corpus.prepared import check_belongs, load_prepared
from ..corpus.tokenizer import TextTokenizer
from .config import TrainConfig

MANY_EPOCHS = 100
_BYTES_A_TOKEN = 4  # of English text in a vocabulary of today, roughly


def planned_data(config: TrainConfig, tokenizer: TextTokenizer) -> dict[str, Any]:
    """The inputs that are there, or the prepared rows; it is said when they would be seen too often, or not all.

    Raises:
        DataError: an input is missing.
        ArtifactError: the prepared data cannot be opened.
        MismatchError: they are of another tokenizer.
    """
    if config.data.prepared is None:
        return _of_inputs(config)
    prepared = load_prepared(config.data.prepared, verify=False)
    check_belongs(prepared, tokenizer)
    figures, rows = prepared.figures["train"], len(prepared.train)
    epochs = config.optim.steps * config.optim.batch_size / rows
    _tell(epochs, f"the {rows:,} packed rows", config, about="")
    return {
        "rows": rows,
        "heldout_rows": len(prepared.heldout),
        "tokens": figures["tokens"],
        "counted_tokens": figures["counted"],
        "epochs": round(epochs, 3),
    }


def _of_inputs(config: TrainConfig) -> dict[str, Any]:
    """Files that are not tokenised yet; of plain ones their size tells roughly how often they would be seen."""
    heldout = expand_paths(config.data.heldout) if config.data.heldout else []
    train = expand_paths(config.data.train)
    size = _plain_bytes(train)
    found: dict[str, Any] = {"inputs": len(train), "heldout_inputs": len(heldout), "input_bytes": size}
    found["epochs_about"] = None
    if size:
        tokens = config.optim.steps * config.optim.batch_size * config.data.sequence_length
        epochs = float(f"{tokens * _BYTES_A_TOKEN / size:.2g}")  # no more is known
        _tell(epochs, f"the conversations or texts ({size / 1e6:,.1f} MB)", config, about="about ")
        found["epochs_about"] = epochs
    return found


def _plain_bytes(files: Sequence[Path]) -> int | None:
    """Bytes of files of text; None where one is compressed or elsewhere, so that its size says little."""
    if any(kind_of(file) in ("hub", "parquet") or file.suffix.lower() in PACKED_SUFFIXES for file in files):
        return None
    return sum(file.stat().st_size for file in files)


def _tell(epochs: float, what: str, config: TrainConfig, *, about: str) -> None:
    """Say that rows would be seen too often, or not all of them, and what to set."""
    steps, batch = config.optim.steps, config.optim.batch_size
    if epochs > MANY_EPOCHS:
        fewer = max(1, int(MANY_EPOCHS * steps / epochs))
        say(
            f"Warning: each of {what} would be seen {about}{epochs:,.0f} times ({steps:,} steps of {batch:,} "
            f"rows): prepare more data, or take fewer steps (optim.steps={fewer} is {about}{MANY_EPOCHS} times)"
        )
    elif epochs < 1:
        whole = math.ceil(steps / epochs)
        say(
            f"Warning: not all of {what} would be seen, only {about}{100 * epochs:.2g}% of them ({steps:,} steps of "
            f"{batch:,} rows): optim.steps={whole} sees each {about}once"
        )
