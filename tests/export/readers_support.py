"""A small target, a drafter that drafts well for it, and its folders, for the readers and the doctor's checks."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.folders import edit_folder
from tests.worlds import tiny_target
from vocabforge.doctor.served_drafter import ProbedText, probe
from vocabforge.doctor.target import TargetFacts
from vocabforge.export.servers.types import ServedTarget
from vocabforge.layouts.interface import Export
from vocabforge.layouts.layer_ids import LAYER_IDS
from vocabforge.layouts.registry import layout_of
from vocabforge.models.drafters.eagle1 import Eagle1Config, Eagle1Drafter
from vocabforge.models.drafters.eagle3 import Eagle3Config, Eagle3Drafter
from vocabforge.models.drafters.revocab import with_head
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.models.target.head import TargetTensors
from vocabforge.models.target.load import read_target_config

V, R, LAYERS = 61, 40, (1, 3, 4)
IDS = torch.cat([torch.arange(1, 9), torch.arange(12, 43), torch.tensor([55])])
PROMPTS = tuple(tuple((7 * i + 11 * j + 3) % V for j in range(6)) for i in range(8))
RIDGE = 1e-2
# How Qwen2's tokenizer cuts a text.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Tiny:
    """A target with its tensors."""

    path: Path
    model: LeanModel
    shared: TargetTensors
    probed: dict[int, list[ProbedText]] = field(default_factory=dict)

    @property
    def facts(self) -> TargetFacts:
        return TargetFacts(self.path, self.model, None)

    @property
    def side(self) -> ServedTarget:
        return ServedTarget(read_target_config(self.path), 8, self.shared.embedding, self.shared.head)

    def texts(self, new: int = 40) -> list[ProbedText]:
        """All prompts continued, with the states of every layer; made once."""
        if new not in self.probed:
            self.probed[new] = probe(self.model, PROMPTS, new, range(8))
        return self.probed[new]


def make_tiny(folder: Path) -> Tiny:
    """Eight layers, so that EAGLE-3's own layers and their neighbours are different ones."""
    path = tiny_target(folder, num_hidden_layers=8)
    model = load_target(path)
    shared = TargetTensors(model.embedding.detach(), model.lm_head_weight.detach())
    return Tiny(path, model, shared)


def eagle3(tiny: Tiny, *, rows: Tensor | None = IDS, layers: tuple[int, ...] = LAYERS, **flags: Any) -> Any:
    """An EAGLE-3 drafter; ``fc`` maps the features to the target's last state a position later (least squares)."""
    torch.manual_seed(3)
    config = Eagle3Config(
        hidden_size=32,
        intermediate_size=40,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=V,
        draft_vocab_size=None if rows is None else len(rows),
        aux_layers=layers,
        max_position_embeddings=256,
        **flags,
    )
    drafter = Eagle3Drafter(config, tiny.shared.embedding, tiny.shared.head, rows)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, 0.04 if "o_proj" in name or "down_proj" in name else 0.3)
        drafter.norm.weight.copy_(tiny.model.norm)
        if rows is not None:
            drafter.lm_head.weight.copy_(tiny.shared.head[rows])
        if not (config.norm_before_fc or config.fc_norm or config.norm_before_residual):
            drafter.fc.weight.copy_(_fit(tiny, layers))
    return drafter.eval()


def _fit(tiny: Tiny, layers: tuple[int, ...]) -> Tensor:
    """(H, n_aux * H) ridge regression over the texts."""
    texts = tiny.texts()
    x = torch.cat([text.features(layers)[text.start :][:-1] for text in texts]).double()
    y = torch.cat([text.outputs[7][text.start :][1:] for text in texts]).double()
    gram = x.T @ x + RIDGE * torch.eye(x.shape[1], dtype=x.dtype)
    return torch.linalg.solve(gram, x.T @ y).T.float()


def eagle1(
    shared: TargetTensors, *, own: int | None = None, ids: Tensor | None = None, **changes: Any
) -> Eagle1Drafter:
    """A random EAGLE-1 drafter over a target of 61 tokens, norms and bias away from their start."""
    torch.manual_seed(3)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "vocab_size": V,
        "draft_vocab_size": own,
        "max_position_embeddings": 256,
        "fc_bias": True,
    }
    drafter = Eagle1Drafter(Eagle1Config(**sizes | changes), shared.embedding, shared.head, ids)
    with torch.no_grad():
        for name, p in drafter.named_parameters():
            p.uniform_(0.5, 1.5) if "norm" in name else p.normal_(0.0, 0.3)
    return drafter.eval().requires_grad_(False)


def eagle1_over(shared: TargetTensors, rows: Tensor) -> Any:
    """One whose head has the target's rows of these ids."""
    return with_head(eagle1(shared), rows, shared.head[rows])


def write(
    tiny: Tiny, drafter: Any, name: str, folder: Path, dtype: torch.dtype = torch.float32, **fields: Any
) -> Path:
    """A folder of a layout, without a manifest: made elsewhere, as far as anyone can tell."""
    export = Export(drafter, read_target_config(tiny.path), tiny.shared, str(tiny.path), dtype)
    layout_of(name).write(folder, dataclasses.replace(export, **fields))
    (folder / "manifest.json").unlink()
    return folder


def write_tokenizer(folder: Path, pieces: str = QWEN2) -> Path:
    """A tokenizer of 29 tokens for 31 rows: letters, one merge, two special tokens."""
    letters = [chr(97 + at) for at in range(26)]
    split = {"type": "Split", "pattern": {"Regex": pieces}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    body = {
        "added_tokens": [
            {"id": 27, "content": "<|end|>", "special": True, **special},
            {"id": 28, "content": "<word>", "special": False, **special},
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {one: at for at, one in enumerate([*letters, "ab"])},
            "merges": [["a", "b"]],
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(body))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return folder


def changed(good: Path, folder: Path, **changes: Any) -> Path:
    """A copy of a folder with one thing changed; see ``edit_folder``."""
    shutil.copytree(good, folder)
    return edit_folder(folder, **changes)


def _inner(body: Mapping[str, Any]) -> Any:
    return (body.get("eagle_config") or {}).get(LAYER_IDS)


def _default(num_layers: int) -> tuple[int, ...]:
    return (1, num_layers // 2 - 1, num_layers - 4)


def sglang_captures(body: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """The outputs that SGLang hands to the drafter, ascending, each once; the last layer's is never captured."""
    layers = _inner(body) or _default(num_layers)
    return tuple(sorted({layer for layer in layers if layer < num_layers - 1}))


def vllm_captures(body: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """The outputs that vLLM hands to the drafter, ascending, each once; -1 is the input embedding."""
    listed = body.get(LAYER_IDS) or _inner(body)
    layers = [layer - 1 for layer in listed] if listed else _default(num_layers)
    return tuple(sorted({layer for layer in layers if -1 <= layer < num_layers}))
