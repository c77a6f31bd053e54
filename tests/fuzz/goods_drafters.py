"""Good examples of drafters: every kind in every layout, MTP modules in shards of their targets, GGUF files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from tests.decode.drafting import make_drafter
from tests.models.mtp_targets import make_target as make_mtp_target
from vocabforge.core.artifact import MANIFEST
from vocabforge.layouts.interface import Export
from vocabforge.layouts.registry import layout_of, load_drafter
from vocabforge.models.drafters.io import load_target_tensors, save_drafter
from vocabforge.models.target.hf import HFTarget, read_target_config

BLOCKS = ("dflash", "dspark", "peagle")
MTP_FAMILIES = {"glm4_moe": False, "deepseek_v3": False, "qwen3_next": True}  # -> experts in one tensor
MASK, ROWS = 2, 264


def make_drafters(folder: Path) -> None:
    """Needs what :func:`tests.cli.every_kind.make_every_kind` made in the folder."""
    model = folder / "model"
    target = HFTarget.load(model)
    meta = {"target_fingerprint": None, "tokenizer_fingerprint": None}
    for kind in BLOCKS:
        drafter = make_drafter(kind, model, target, "reduced", mask_token_id=MASK, num_layers=1, block_size=3)
        save_drafter(folder / f"native-{kind}", drafter, meta)
        _written(folder / f"speculators-{kind}", "speculators-block", drafter, model)
        if kind != "peagle":
            own = {"mask_token_id": MASK if kind == "dspark" else None}  # DFlash: a mask row in a file
            drafter = make_drafter(kind, model, target, "reduced", num_layers=1, block_size=3, **own)
            _written(folder / f"block-{kind}", "block", drafter, model)
    for family, fused in MTP_FAMILIES.items():
        make_mtp_target(folder / f"mtp-{family}", family, fused=fused, vocab_size=ROWS)
    own = folder / "mtp-glm4_moe"
    module, _ = load_drafter(own, load_target_tensors(own), own)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.25)
    save_drafter(folder / "native-mtp", module, meta)
    for name in ("gguf", "medusa", "vllm"):
        shutil.copytree(folder / f"export-{name}", folder / f"others-{name}")
        (folder / f"others-{name}" / MANIFEST).unlink()


def _written(path: Path, layout: str, drafter: Any, model: Path) -> None:
    export = Export(
        drafter,
        read_target_config(model),
        load_target_tensors(model),
        "tiny",
        torch.float32,
        target_path=model,
    )
    layout_of(layout).write(path, export)
    (path / MANIFEST).unlink()
