"""Export an EAGLE-3 drafter with its draft head for VocabForge's vLLM class (serve/vllm/eagle3.py)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from ..models.drafters.eagle3 import Eagle3Drafter
from ..models.drafters.interface import Drafter
from ..models.heads.served import KEY, PREFIX, read_served
from ..models.target.head import TargetTensors
from ..models.target.text_config import text_config
from .eagle3 import WITH_HEAD, SglangEagle3, config_body, only, parameters, token_maps
from .fields import WEIGHTS, read_config, write_files
from .interface import Export, layout_folder
from .layer_ids import check_expressible


class VllmEagle3:
    """A folder that vLLM loads if VocabForge is installed in its environment."""

    NAME = "vllm"
    KIND = "export-vllm"

    @staticmethod
    def matches(body: Mapping[str, Any]) -> bool:
        """Return whether the configuration contains a draft head."""
        return KEY in body

    @staticmethod
    def write(path: Path, export: Export) -> None:
        drafter = only(Eagle3Drafter, export.drafter, "the vLLM layout")
        assert export.head is not None  # checked by `export`
        config, layers = drafter.config, int(text_config(export.target).num_hidden_layers)
        check_expressible(
            config.aux_layers, layers - 1, layout="vLLM", remedy="train with other drafter.aux_layers"
        )
        body = config_body(config, export.target, export.dtype)
        body |= {"architectures": [WITH_HEAD[config.qk_norm]], KEY: export.head.body()}
        tensors = parameters(drafter, export.dtype) | token_maps(drafter, export.meta)
        with layout_folder(path, VllmEagle3.KIND, export) as folder:
            tensors |= export.head.tensors(export.dtype)
            write_files(folder, tensors, body)

    @staticmethod
    def read(path: Path, shared: TargetTensors, num_layers: int) -> Drafter:
        """Read the drafter without its draft head, but check that the head is readable."""
        drafter = SglangEagle3.read(path, shared, num_layers)
        tensors = load_file(path / WEIGHTS)
        own = {name: tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
        read_served(read_config(path)[KEY], own, path)
        return drafter
