"""Readers of drafters: block drafters, MTP modules and GGUF files in every layout, as we and as servers load them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from tests.fuzz.goods_drafters import BLOCKS, MTP_FAMILIES
from tests.fuzz.reader import Read, Reader, command

_FOLDER = ("config.json", "*.safetensors", "*.pt")
_SHARDS = ("config.json", "*.safetensors", "*.index.json")
_SERVED_BLOCKS = [f"block-{kind}" for kind in ("dflash", "dspark")]
_LIBRARY_BLOCKS = [f"speculators-{kind}" for kind in BLOCKS]


@functools.lru_cache(maxsize=2)
def target_tensors(model: Path) -> Any:
    """What drafters share of a target; a batch of inputs reads it once."""
    from vocabforge.models.drafters.io import load_target_tensors

    return load_target_tensors(model)


def _drafter(target: str) -> Read:
    """Loaded for a good target."""

    def read(path: Path, goods: Path) -> Any:
        from vocabforge.layouts.registry import load_drafter

        return load_drafter(path, target_tensors(goods / target), goods / target)

    return read


def _own_module(family: str) -> Read:
    """A target drafts for itself: its configuration and its shards are the spoilt ones."""

    def read(path: Path, goods: Path) -> Any:
        from vocabforge.layouts.registry import load_drafter

        return load_drafter(path, target_tensors(goods / f"mtp-{family}"), path)

    return read


def _as_servers(target: str) -> Read:
    """The folder as servers read it: what they break on is a finding, never an exception."""

    def read(path: Path, goods: Path) -> Any:
        from vocabforge.export.servers.registry import READERS, open_folder, read_as, reader_of
        from vocabforge.export.servers.types import ServedTarget
        from vocabforge.models.target.hf import read_target_config

        shared = target_tensors(goods / target)
        side = ServedTarget(read_target_config(goods / target), 5, shared.embedding, shared.head)
        folder = open_folder(path)
        return [read_as(name, folder, side) for name in READERS if reader_of(name).matches(folder)]

    return read


def _written_back(path: Path, goods: Path) -> None:
    """A module written into a spoilt checkpoint, with the target."""
    words = ("--drafter", goods / "native-mtp", "--target", path, "--format", "mtp", "--with-target")
    command("export", *words, "--output", path.parent / "out")


DRAFTERS: dict[str, Reader] = {
    **{
        f"drafter {name}": Reader(name, _drafter("model"), _FOLDER)
        for name in (*_SERVED_BLOCKS, *_LIBRARY_BLOCKS, "others-medusa", "others-vllm")
    },
    **{
        f"drafter native-{kind}": Reader(
            f"native-{kind}",
            _drafter("mtp-glm4_moe" if kind == "mtp" else "model"),
            ("*.json", "*.safetensors"),
            sealed=True,
        )
        for kind in (*BLOCKS, "mtp")
    },
    "drafter GGUF": Reader("others-gguf", _drafter("known"), ("*.gguf",)),
    **{
        f"MTP module of {family}": Reader(f"mtp-{family}", _own_module(family), _SHARDS)
        for family in MTP_FAMILIES
    },
    "MTP module written back": Reader("mtp-glm4_moe", _written_back, _SHARDS),
    **{
        f"{name} as servers": Reader(name, _as_servers("model"), _FOLDER)
        for name in (*_SERVED_BLOCKS, *_LIBRARY_BLOCKS, "others-medusa", "others-vllm")
    },
    "GGUF as servers": Reader("others-gguf", _as_servers("known"), ("*.gguf",)),
}
