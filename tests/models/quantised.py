"""Tiny quantised checkpoints, each beside the one that it comes to when it is dequantised by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.architectures import make_architecture

_BLOCK = 16
_FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
_E2M1 = torch.tensor([*_FP4, *(-value for value in _FP4)])


def _written(folder: Path, weights: dict[str, Tensor], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _saved(model: Any, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    model.to(torch.bfloat16).save_pretrained(folder)
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


def fp8_target(folder: Path) -> tuple[Path, Path]:
    """A Llama in FP8 blocks of 16 x 16 as DeepSeek and Qwen store them, and the same in bf16."""
    weights, config = _saved(make_architecture("llama"), folder / "whole")
    packed, plain = dict(weights), dict(weights)
    for name, weight in weights.items():
        if "proj" in name:
            blocks = weight.float().unflatten(0, (-1, _BLOCK)).unflatten(2, (-1, _BLOCK))  # (a, 16, b, 16)
            scale = blocks.abs().amax((1, 3)) / 448
            stored = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
            packed[name] = stored.flatten(2).flatten(0, 1).contiguous()
            packed[f"{name}_scale_inv"] = scale
            back = stored.float() * scale[:, None, :, None]
            plain[name] = back.flatten(2).flatten(0, 1).to(torch.bfloat16).contiguous()
    quantised = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [_BLOCK, _BLOCK]}
    return _written(folder / "fp8", packed, {**config, "quantization_config": quantised}), _written(
        folder / "fp8-plain", plain, config
    )


def mxfp4_target(folder: Path) -> tuple[Path, Path]:
    """A gpt-oss whose experts are MXFP4 (32 numbers of 4 bits share an exponent), and the same in bf16."""
    weights, config = _saved(make_architecture("gpt-oss", intermediate_size=64), folder / "whole-oss")
    packed, plain = dict[str, Tensor](), dict(weights)
    draw = torch.Generator().manual_seed(0)
    for name, weight in weights.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            packed[name] = weight
            continue
        experts, inner, outer = weight.shape
        numbers = torch.randint(0, 16, (experts, outer, inner // 32, 32), generator=draw, dtype=torch.uint8)
        exponent = torch.randint(120, 125, (experts, outer, inner // 32), generator=draw, dtype=torch.uint8)
        packed[f"{name}_blocks"] = (numbers[..., 0::2] | (numbers[..., 1::2] << 4)).contiguous()
        packed[f"{name}_scales"] = exponent
        back = _E2M1[numbers.long()] * 2.0 ** (exponent.float() - 127)[..., None]
        plain[name] = back.flatten(2).transpose(1, 2).to(torch.bfloat16).contiguous()
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    quantised = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    return _written(folder / "mxfp4", packed, {**config, "quantization_config": quantised}), _written(
        folder / "mxfp4-plain", plain, config
    )
