"""The Medusa layout (``config.json`` + ``model.safetensors``), read by vLLM up to 0.32 and dropped in 0.33.

Tensors: ``blocks.I.layers.J.{weight,bias}``, (H, H) and (H,), of block J in head I; and one
``lm_head.weight`` (V, H) shared by all heads (``original_lm_head``), or ``lm_heads.I.weight``.

The authors' ``medusa_lm_head.pt`` or ``.safetensors`` is read too: ``I.J.linear.{weight,bias}`` and, with an LM
head for each head, ``I.{blocks}.weight``. Its ``config.json`` has no sizes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.console import say
from ..core.errors import ConfigError, DataError
from ..models.drafters.interface import Drafter
from ..models.drafters.io import assemble
from ..models.drafters.medusa import MedusaConfig, MedusaDrafter
from ..models.target.head import TargetTensors
from ..models.target.load import dtype_name
from .eagle3 import check_whole_vocabulary, only, parameters, stored_tensors
from .eagle3_folder import LM_HEAD, rounded_alike
from .fields import CONFIG, read_config, write_files
from .interface import Export, layout_folder

ARCHITECTURE = "MedusaModel"
# The form of the heads. Without the second key vLLM silently drops the biases.
_FORM = {"medusa_fc_bias": True}
_POSITIONS = 1 << 20  # vLLM's default
_AUTHORS = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(linear\.)?(weight|bias)")


class Medusa:
    """A folder that vLLM 0.32 loads."""

    NAME = "medusa"
    KIND = "export-medusa"

    @staticmethod
    def matches(body: Mapping[str, Any]) -> bool:
        """Return whether the model type or architecture is Medusa's."""
        named = body.get("architectures")
        return body.get("model_type") == "medusa" or (isinstance(named, list) and ARCHITECTURE in named)

    @staticmethod
    def write(path: Path, export: Export) -> None:
        drafter = only(MedusaDrafter, export.drafter, "the layout medusa")
        remedy = "export without --vocab a drafter of the whole vocabulary, or use --format native"
        check_whole_vocabulary(drafter, Medusa.NAME, remedy)
        config = drafter.config
        tensors = {_served(name): tensor for name, tensor in parameters(drafter, export.dtype).items()}
        if not config.medusa_own_heads:
            head = drafter.head_weight.detach().to("cpu", export.dtype, copy=True).contiguous()
            tensors[LM_HEAD] = head
        with layout_folder(path, Medusa.KIND, export) as folder:
            write_files(folder, tensors, medusa_config(config, export.dtype))

    @staticmethod
    def read(path: Path, shared: TargetTensors, num_layers: int) -> Drafter:
        """Read a folder strictly; an LM head that equals the target's is shared."""
        body, tensors = read_config(path), stored_tensors(path)
        if any(_AUTHORS.fullmatch(name) for name in tensors):
            body, tensors = _from_authors(body, tensors, shared, path)
        config = _read_config(body, path / CONFIG)
        head, each = tensors.get(LM_HEAD), config["medusa_own_heads"]
        own = head is not None and not rounded_alike(head, shared.head)
        if not own and not each:
            tensors.pop(LM_HEAD, None)
        several = config["medusa_layers"] > 1
        ours = {_ours(name, several): tensor.to(shared.embedding.dtype) for name, tensor in tensors.items()}
        try:
            sizes = MedusaConfig(**config, draft_vocab_size=config["vocab_size"] if own or each else None)
        except ConfigError as error:
            raise _not_computed(str(error.got), path / CONFIG) from error
        drafter: Drafter = assemble(sizes, ours, None, shared, source=path)
        return drafter


def _served(name: str) -> str:
    """Return vLLM's name for ``blocks.I.linear`` (one block) or ``blocks.I.J.linear``."""
    name = re.sub(r"^blocks\.(\d+)\.(\d+)\.linear\.", r"blocks.\1.layers.\2.", name)
    return name.replace(".linear.", ".layers.0.")


def _ours(name: str, several: bool) -> str:
    ours = r"blocks.\1.\2.linear." if several else r"blocks.\1.linear."
    return re.sub(
        r"^blocks\.(\d+)\.layers\.(\d+)\." if several else r"^blocks\.(\d+)\.layers\.(0)\.", ours, name
    )


def _from_authors(
    body: Mapping[str, Any], tensors: Mapping[str, Tensor], shared: TargetTensors, path: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return configuration and tensors of the layout for the authors' and their target.

    Raises:
        DataError: the configuration counts blocks or heads that are not stored.
    """
    places = [_AUTHORS.fullmatch(name) for name in tensors]
    stored = [(int(place[1]), int(place[2])) for place in places if place and place[3]]
    heads, blocks = (1 + max((place[at] for place in stored), default=-1) for at in (0, 1))
    named_heads, named_blocks = body.get("medusa_num_heads", heads), body.get("medusa_num_layers", blocks)
    if named_blocks != blocks or type(named_heads) is not int or named_heads > heads:
        raise DataError(
            "the Medusa configuration contradicts its weights",
            got=f"medusa_num_heads {named_heads!r}, medusa_num_layers {named_blocks!r}",
            expected=f"{heads} and {blocks}, as stored",
            source=path / CONFIG,
            remedy="fetch the folder again",
        )
    if named_heads < heads:  # the authors published such folders
        say(f"{path.name}: reads all {heads} stored heads; its config.json counts {named_heads}")
    served = rf"^(\d+)\.{blocks}\.weight$", r"lm_heads.\1.weight"
    renamed = {
        re.sub(*served, re.sub(r"^(\d+)\.(\d+)\.linear\.", r"blocks.\1.layers.\2.", name)): tensor
        for name, tensor in tensors.items()
    }
    vocab, hidden = shared.head.shape
    return {
        "hidden_size": hidden,
        "vocab_size": vocab,
        "truncated_vocab_size": vocab,
        "num_heads": heads,
        "num_hidden_layers": blocks,
        "original_lm_head": not any(name.startswith("lm_heads.") for name in renamed),
        **_FORM,
    }, renamed


def medusa_config(config: MedusaConfig, dtype: torch.dtype) -> dict[str, Any]:
    """Return the layout's ``config.json``."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "medusa",
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "truncated_vocab_size": config.vocab_size,
        "num_heads": config.medusa_heads,
        "num_hidden_layers": config.medusa_layers,
        "original_lm_head": not config.medusa_own_heads,
        **_FORM,
        "max_position_embeddings": config.max_position_embeddings,
        "torch_dtype": dtype_name(dtype),
        "dtype": dtype_name(dtype),
    }


def _read_config(body: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """Read the sizes; raise DataError for a missing size, a fraction, or an unsupported form."""
    sizes = {
        "hidden_size": body.get("hidden_size"),
        "vocab_size": body.get("vocab_size"),
        "num_heads": body.get("num_heads"),
        "num_hidden_layers": body.get("num_hidden_layers"),
        "max_position_embeddings": body.get("max_position_embeddings", _POSITIONS),
    }
    wanted = {**_FORM, "truncated_vocab_size": sizes["vocab_size"]}
    wrong = [f"{name} {value!r}" for name, value in sizes.items() if type(value) is not int]
    wrong += [f"{name} {body.get(name)!r}" for name, value in wanted.items() if body.get(name) != value]
    shared = body.get("original_lm_head", False)  # vLLM's default
    if not isinstance(shared, bool):
        wrong.append(f"original_lm_head {shared!r}")
    if wrong:
        raise _not_computed(", ".join(wrong), source)
    sizes["medusa_heads"], sizes["medusa_layers"] = sizes.pop("num_heads"), sizes.pop("num_hidden_layers")
    return sizes | {"medusa_own_heads": not shared}


def _not_computed(got: str, source: Path) -> DataError:
    return DataError(
        "these Medusa heads are not computed here",
        got=got,
        expected="medusa_fc_bias true, truncated_vocab_size as vocab_size, whole sizes, up to 5 heads of 8 blocks",
        source=source,
        remedy="correct config.json, or export the drafter again",
    )
