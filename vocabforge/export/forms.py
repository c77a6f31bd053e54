"""Which servers would run a drafter of a form, before it is trained."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..core.errors import MismatchError, UsageError
from ..layouts.gguf.layout import check_form
from ..layouts.interface import Export
from ..layouts.registry import layout_of
from ..models.drafters.registry import drafter_class, new_drafter
from ..models.drafters.revocab import with_stored_rows
from ..models.target.head import TargetTensors
from ..models.target.load import read_target_config
from ..models.target.text_config import text_config
from .card import readers
from .checked import check_written
from .servers.registry import READERS, open_folder, read_as, reader_of
from .servers.types import ServedTarget

# Kind of drafter -> layouts that servers read.
SERVED = {
    "eagle3": ("sglang-eagle3", "speculators-eagle3", "gguf"),
    "eagle1": ("eagle", "fr-spec"),
    "medusa": ("medusa",),
    "peagle": ("speculators-block",),
    "dflash": ("block", "speculators-block"),
    "dspark": ("block", "speculators-block"),
}
# Sizes of the drafter of a dry run; a layout's refusals depend on the form alone.
_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_heads": 2,
    "num_kv_heads": 1,
    "vocab_size": 64,
    "markov_rank": 4,
    "mask_token_id": 2,
}


def served_forms(drafter: Mapping[str, Any], vocab: Path | None, target: Path) -> dict[str, str]:
    """Return, by layout, which servers would run a drafter of this form, or why none would.

    A small drafter with random weights and the same form is written, read back, and read as each server does.

    Args:
        drafter: ``kind`` and sizes, as in the plan of a training run.
        vocab: draft vocabulary (subset artefact); None: all tokens.
    """
    kind, sizes_type = drafter["kind"], drafter_class(drafter["kind"]).sizes_type
    names = {field.name for field in dataclasses.fields(sizes_type)}
    sizes = sizes_type.from_dict({name: size for name, size in drafter.items() if name in names})
    small: dict[str, int | None] = {
        name: size for name, size in _SMALL.items() if name in names and getattr(sizes, name) is not None
    }
    count = _SMALL["vocab_size"]
    ids = (
        None
        if vocab is None and sizes.draft_vocab_size in (None, sizes.vocab_size)
        else torch.arange(0, count, 2)
    )
    small["draft_vocab_size"] = None if sizes.draft_vocab_size is None else count if ids is None else len(ids)
    config = read_target_config(target)
    embedding = torch.randn(count, _SMALL["hidden_size"])
    shared = TargetTensors(embedding, embedding.roll(1, 0))
    made = new_drafter(kind, dataclasses.replace(sizes, **small), embedding, shared.head, ids).eval()
    export = Export(with_stored_rows(made), config, shared, str(target), torch.float32, target_path=target)
    layers = int(text_config(config).num_hidden_layers)
    if kind == "mtp":
        own = sizes.family is not None
        return {
            "mtp": "for sglang and vllm, in the target's checkpoint" if own else "no: a layer of no family"
        }
    forms = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in SERVED.get(kind, ()):
            try:
                forms[name] = _servers_of(name, Path(folder) / name, export, layers)
            except (MismatchError, UsageError) as error:
                forms[name] = f"no: {error.message} ({error.got})"
    return forms


def _servers_of(name: str, path: Path, export: Export, layers: int) -> str:
    """Write a drafter in a layout; return the servers that run it, with the problems of the others."""
    if name == "gguf":  # its files hold the target's tokenizer, which has other sizes
        check_form(export.drafter.config, export.target)
        return "for llama.cpp"
    layout = layout_of(name)
    layout.write(path, export)
    check_written(layout, path, export, layers)
    side = ServedTarget(export.target, layers, export.shared.embedding, export.shared.head)
    folder, shown = open_folder(path), []
    for server in readers(name, export):
        reader = reader_of(server) if server in READERS else None
        failed: list[str] = []
        if reader is not None and reader.matches(folder):
            problems = read_as(server, folder, side).problems
            failed = [problem.message for problem in problems if problem.state == "failed"]
        window = getattr(export.drafter.config, "sliding_window", None)
        if server == "sglang" and window is not None and not failed:
            server += f" --speculative-draft-window-size {window}"
        shown.append(server + (f" (no: {failed[0]})" if failed else ""))
    return f"for {' and '.join(shown)}"
