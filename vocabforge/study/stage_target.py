"""Stage ``target``: a Llama with the study's tokenizer, trained on its conversations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.console import say
from ..core.errors import DataError
from ..core.files import atomic_write, sha256_file
from ..corpus.sources.bytes import ByteSpan
from ..corpus.sources.inputs import PACKED_SUFFIXES
from ..demo.target.build import finished_target, train_tiny_target
from ..demo.target.train import WorkFolder
from .config import StudyConfig
from .induction import build_induction
from .layout import StudyLayout
from .target_loss import StudyTinyTargetConfig, make_target_step

SEED = 0  # every family of drafters has the same target
HELDOUT_ROWS = 48  # of a source; at V = 151,936 more would take as long as much of the training


def run(config: StudyConfig, layout: StudyLayout) -> None:
    """Write ``layout.target``, an ordinary Hugging Face folder.

    What is there already and made from the same texts, tokenizer and settings is left. A run that was stopped goes on
    from its last checkpoint.

    Raises:
        DataError: the texts or the tokenizer are missing or unusable, or a loss is not finite.
        MismatchError: a run was begun with other settings, or the tokenizer has more entries than ``target.rows``.
        UsageError: the folder cannot be replaced, or another process works in it.
        KeyboardInterrupt: it was asked to stop.
    """
    wanted = target_config(config, layout)
    found = finished_target(wanted, layout.target)
    if found is None:
        found = train_tiny_target(
            wanted,
            layout.target,
            overwrite=True,
            start=(lambda model: build_induction(model, wanted.sequence_length))
            if wanted.induction
            else None,
            make_step=make_target_step,
        )
    else:
        WorkFolder.beside(layout.target).remove()  # the run may have been killed behind its last word
        say(f"target: {layout.target} is made already")
    say(_described(found.meta, losses_by_source(config, found.meta)))


def target_config(config: StudyConfig, layout: StudyLayout) -> StudyTinyTargetConfig:
    """The target of a study."""
    own = config.target
    given = config.data.tokenizer is not None
    tokenizer = {"tokenizer": layout.tokenizer} if given else {"vocab_size": config.data.tokenizer_size}
    return StudyTinyTargetConfig(
        train=layout.train_texts,
        heldout=tuple(layout.heldout_texts(name) for name in _heldout(config)),
        **tokenizer,
        **{name: getattr(own, name) for name in type(own).model_fields},
        heldout_rows=HELDOUT_ROWS,
        seed=SEED,
        device=config.device,
        threads=config.threads,
    )


def losses_by_source(config: StudyConfig, meta: Mapping[str, Any]) -> dict[str, float]:
    """Held-out loss, in nats a counted token, of each source that the target never learnt from.

    Args:
        meta: of the target's manifest.
    """
    losses = meta["heldout_losses"]
    return {
        name: float(losses[StudyLayout(config.output).heldout_texts(name).stem]) for name in _heldout(config)
    }


def _heldout(config: StudyConfig) -> list[str]:
    return [source.name for source in config.data.held_out]


def _described(meta: Mapping[str, Any], losses: Mapping[str, float]) -> str:
    said = ", ".join(f"{name} {loss:.2f}" for name, loss in losses.items())
    return (
        f"target: {meta['parameters']:,} parameters, {meta['train_tokens']:,} tokens of text, last losses "
        f"{meta['last_loss']:.2f}; held-out loss in nats a token: {said or 'no source is held out'}"
    )


TOKENIZER = "tokenizer.json"
BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def tokenizer_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of a tokenizer's files as they are stored, by role.

    Raises:
        DataError: there is no tokenizer.json, packed or not.
    """
    files = [_stored(folder), *(folder / name for name in BESIDE)]
    return {f"tokenizer {file.name}": sha256_file(file) for file in files if file.is_file()}


def unpack_tokenizer(source: Path, folder: Path) -> None:
    """Write a tokenizer's files to ``folder``: tokenizer.json unpacked, the others byte for byte; it comes last.

    Files that are the same there are left as they are; one of ``BESIDE`` that ``source`` lacks is removed.

    Raises:
        DataError: there is no tokenizer.json, or it is damaged.
        VocabForgeError: the disk refuses to be written to.
    """
    stored = _stored(source)
    content = b"".join(block for _, block in ByteSpan(stored).blocks())
    for name in BESIDE:
        if (source / name).is_file():
            _write(folder / name, (source / name).read_bytes())
        else:
            (folder / name).unlink(missing_ok=True)
    _write(folder / TOKENIZER, content)


def _stored(folder: Path) -> Path:
    """The file of the tokenizer, as it is or packed."""
    for suffix in ("", *PACKED_SUFFIXES):
        if (path := folder / f"{TOKENIZER}{suffix}").is_file():
            return path
    raise DataError(
        "the folder holds no tokenizer.json",
        expected=f"{folder / TOKENIZER}, or packed as {', '.join(PACKED_SUFFIXES)}",
        remedy="check data.root and data.tokenizer",
    )


def _write(path: Path, content: bytes) -> None:
    if not path.is_file() or path.read_bytes() != content:
        atomic_write(path, content)
