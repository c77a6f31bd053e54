"""A small Llama target trained on conversations, with a tokenizer of its own or a given one, so that nothing has to be
fetched.

Everything follows from the configuration and the files: fixed steps, fixed seeds, no wall clock.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..core.artifact import Artifact, check_output, open_artifact, write_artifact
from ..core.errors import ArtifactError, DataError
from ..core.files import sha256_file
from ..core.lock import only_writer
from ..core.progress import say
from ..corpus.sources import SourceOptions, iter_documents
from ..corpus.tokenizer import TextTokenizer
from ..models.device import choose_device
from .machine import keep_freed_memory
from .tiny_target_config import TinyTargetConfig
from .tiny_target_loss import heldout_loss
from .tiny_target_model import build_model, copy_tokenizer, tokenizer_files
from .tiny_target_rows import Rows, packed_rows, prepared_rows, spread
from .tiny_target_run import METRICS, WorkFolder, passes_in_bf16, train_model
from .tiny_tokenizer import make_tokenizer

__all__ = ["KIND", "TinyTargetConfig", "finished_target", "target_inputs", "train_tiny_target"]

KIND = "target"


def _texts(path: Path) -> Iterator[str]:
    """All that is said in a file's conversations."""
    for document in iter_documents([path], SourceOptions(strict=True)):
        yield from (str(message["content"]) for message in document.messages or ())


def target_inputs(config: TinyTargetConfig) -> dict[str, str]:
    """Hashes of the files a target is made from, as its manifest records them under ``parents``.

    Raises:
        DataError: a file cannot be read.
    """
    files = {"train": config.train}
    if len(config.heldout_files) == 1:
        files["heldout"] = config.heldout_files[0]
    else:
        files |= {f"heldout/{path.stem}": path for path in config.heldout_files}
    if config.tokenizer is not None:
        files |= {f"tokenizer/{path.name}": path for path in tokenizer_files(config.tokenizer)}
    try:
        return {name: sha256_file(path) for name, path in files.items()}
    except OSError as error:
        raise DataError(
            "the conversations cannot be read",
            got=error.strerror or error,
            source=error.filename,
            remedy="check the path and its permissions",
        ) from error


def finished_target(config: TinyTargetConfig, folder: Path) -> Artifact | None:
    """The target in ``folder``, if it was made from the same files with the same settings and is whole.

    Raises:
        DataError: a file that it is made from cannot be read.
    """
    try:
        found = open_artifact(folder, KIND)
        before = TinyTargetConfig.model_validate(found.manifest["config"])
    except (ArtifactError, KeyError, ValueError):  # ValueError: made by a version with other settings
        return None
    same = before.decides() == config.decides() and found.manifest["parents"] == target_inputs(config)
    return found if same else None


def train_tiny_target(config: TinyTargetConfig, folder: Path, *, overwrite: bool = False) -> Artifact:
    """Train a target and write it, with its tokenizer, to ``folder`` as an ordinary Hugging Face folder.

    A ``manifest.json`` (kind ``target``) stands beside the weights; its ``meta`` holds the number of
    parameters, the first and last training losses and the held-out losses (nats a counted token). With
    ``checkpoint_every`` the same call goes on where it was stopped, on a CPU with the same weights in the end.

    Raises:
        DataError: unusable conversations, an unusable tokenizer, or too little text for one.
        MismatchError: the tokenizer has more entries than the model rows, or a run was begun with other settings.
        UsageError: ``folder`` exists and may not be replaced, or no such device.
        KeyboardInterrupt: the run was asked to stop, and can be resumed.
    """
    check_output(folder, overwrite=overwrite)
    device = choose_device(config.device)
    if device.type == "cpu":
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        keep_freed_memory()
    parents = target_inputs(config)
    work = None
    if config.checkpoint_every is not None:
        work = WorkFolder.beside(folder, _identity(config, parents, device))
    with contextlib.nullcontext() if work is None else only_writer(work.path):
        facts: dict[str, Any] = {"seed": config.seed}
        with write_artifact(
            folder,
            KIND,
            facts,
            parents=parents,
            config=config.model_dump(mode="json"),
            overwrite=overwrite,
        ) as temporary:
            facts.update(_make(config, temporary, device, work))
        if work is not None:
            work.remove()
    return open_artifact(folder, KIND)


def _make(
    config: TinyTargetConfig, folder: Path, device: torch.device, work: WorkFolder | None
) -> dict[str, Any]:
    """Fill the target's folder; returns figures for the manifest."""
    if config.tokenizer is None:
        tokenizer = make_tokenizer(_texts(config.train), config.vocab_size, folder)
    else:
        tokenizer = copy_tokenizer(config.tokenizer, folder)
    model = build_model(config, tokenizer).to(device)
    log = folder / METRICS if work is None else work.metrics
    figures = _fit(model, tokenizer, config, log, work)
    model.save_pretrained(folder)
    if work is not None:
        shutil.copyfile(log, folder / METRICS)
    return figures


def _identity(config: TinyTargetConfig, parents: dict[str, str], device: torch.device) -> dict[str, Any]:
    """What a resumed run must share; held-out files are only read behind the last step."""
    learnt = {name: value for name, value in parents.items() if not name.startswith("heldout")}
    passes = "bf16" if passes_in_bf16(config.mixed_precision, device) else "fp32"
    return {**config.decides(), **learnt, "passes": f"{passes} on {device.type}"}


def _fit(
    model: Any, tokenizer: TextTokenizer, config: TinyTargetConfig, log: Path, work: WorkFolder | None
) -> dict[str, Any]:
    """Train the model and measure it; returns figures for the manifest."""
    length, pad = config.sequence_length, model.config.pad_token_id
    strict = config.tokenizer is None  # a given chat template may refuse some conversations
    if work is None:
        packed = packed_rows(tokenizer, config.train, length, pad, strict=strict)
    else:
        packed = prepared_rows(work.rows, tokenizer, config.train, config.heldout_files, length)
    rows = Rows(packed, config.loss_on)
    if work is not None:
        seen = config.optim.steps * config.optim.batch_size
        say(
            f"{sum(p.numel() for p in model.parameters()):,} parameters learn {rows.tokens:,} tokens in {len(rows):,} "
            f"rows, {seen / len(rows):.1f} times, on {model.device.type}"
        )
    losses = train_model(model.train(), rows, config, log, work)
    sums = {}
    for path in config.heldout_files:
        checked = Rows(packed_rows(tokenizer, path, length, pad, strict=strict), config.loss_on)
        sums[path.stem] = heldout_loss(model.eval(), checked, spread(len(checked), config.heldout_rows))
    total, count = (sum(values[at] for values in sums.values()) for at in (0, 1))
    return {
        "vocab_size": model.config.vocab_size,
        "parameters": sum(p.numel() for p in model.parameters()),
        "train_rows": len(rows),
        "train_tokens": rows.tokens,
        "passes": "bf16" if passes_in_bf16(config.mixed_precision, model.device) else "fp32",
        "first_loss": round(losses.first, 4),
        "last_loss": round(losses.mean, 4),
        "heldout_loss": round(total / max(count, 1), 4) if sums else None,
        "heldout_losses": {name: round(loss / max(n, 1), 4) for name, (loss, n) in sums.items()},
        "heldout_tokens": {name: n for name, (_, n) in sums.items()},
    }
