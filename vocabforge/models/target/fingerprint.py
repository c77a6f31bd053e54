"""Target fingerprints: cheap to compute, and equal for copies of a model regardless of sharding."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import torch

from ...core.errors import DataError, MismatchError, VocabForgeError
from ...core.hub import model_name
from ..checkpoint import EMBEDDING, LM_HEAD, checkpoint_files, open_weights
from ..rope import parse_rope
from .load import read_target_config

_NORM = re.compile(r"norm[^.]*\.weight$|\.ln_[^.]*\.weight$")
_SAMPLED_ROWS = 16  # evenly spread, including the first and the last row
# Keys of config.json that affect the forward pass.
_FIELDS = (
    "architectures",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "hidden_act",
    "hidden_activation",
    "rms_norm_eps",
    "layer_norm_eps",
    "sliding_window",
    "use_sliding_window",
    "layer_types",
    "partial_rotary_factor",
    "attention_multiplier",
    "residual_multiplier",
    "embedding_multiplier",
    "logits_scaling",
    "logit_scale",
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "query_pre_attn_scalar",
)


def same_target(path: Path, fingerprint: str) -> None:
    """Check, on another machine, that a folder holds the same target.

    Raises:
        MismatchError: the fingerprint differs.
    """
    if (actual := target_fingerprint(path)) != fingerprint:
        raise MismatchError(
            "the target is another model on a machine of the cluster",
            got=f"fingerprint {actual[:12]}",
            expected=f"{fingerprint[:12]}, as on the machine of the command",
            source=path,
            remedy="put the target at the same path on every machine",
        )


def target_fingerprint(path: Path) -> str:
    """Hash the settings that affect the forward pass, and rows spread over every tensor including biases.

    Rows are hashed in fp32, so a lossless change of dtype, a stored copy of a tied LM head, or another
    spelling of the rotary settings keeps the fingerprint. Changes to unsampled rows go undetected.

    Raises:
        DataError: no readable safetensors file.
    """
    config = read_target_config(path)
    facts = [[key, config.get(key)] for key in _FIELDS if config.get(key) is not None]
    digest = hashlib.sha256(json.dumps([facts, _rotary(config)], sort_keys=True, default=str).encode())
    rows: dict[str, bytes] = {}
    for file in checkpoint_files(path):
        with open_weights(file) as handle:
            for name in handle.keys():  # noqa: SIM118 (the handle is not a mapping)
                rows[name] = _sample(handle.get_slice(name))
    if rows.get(LM_HEAD) == rows.get(EMBEDDING):
        rows.pop(LM_HEAD, None)
    if not rows:
        raise DataError(
            "the checkpoint has no weights", got=f"no tensor in {path}", remedy="fetch the checkpoint again"
        )
    for name in sorted(rows):
        digest.update(name.encode())
        digest.update(rows[name])
    return digest.hexdigest()


def norms_fingerprint(path: Path) -> str | None:
    """Hash the sizes, rotary settings and weights of all norms, rounded to bf16; None without norms.

    Most quantisations do not change norms, so they have the same hash as the original. So do fine-tunes that
    do not train the norms, such as merged LoRA weights.

    Raises:
        DataError: no readable safetensors file.
    """
    norms: dict[str, bytes] = {}
    for file in checkpoint_files(path):
        with open_weights(file) as handle:
            for name in filter(_NORM.search, handle.keys()):
                norms[name] = handle.get_tensor(name).to(torch.bfloat16).view(torch.int16).numpy().tobytes()
    if not norms:
        return None
    config = read_target_config(path)
    facts = [config.get("vocab_size"), config.get("hidden_size"), _rotary(config)]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for name in sorted(norms):
        digest.update(name.encode() + norms[name])
    return digest.hexdigest()


def target_facts(path: Path) -> dict[str, str | None]:
    """Return the metadata that a drafter stores about its target.

    These are ``target_fingerprint``, ``target_norms`` and ``target_name``.
    """
    return {
        "target_fingerprint": target_fingerprint(path),
        "target_norms": norms_fingerprint(path),
        "target_name": model_name(path),
    }


def _rotary(config: dict[str, Any]) -> Any:
    """Return the rotary settings in a canonical spelling, or unchanged if they are not supported."""
    try:
        settings = dataclasses.asdict(parse_rope(config, 10_000.0, "config.json"))
        return {key: value for key, value in settings.items() if value is not None}
    except VocabForgeError:
        return [config.get(key) for key in ("rope_theta", "rope_scaling", "rope_parameters")]


def _sample(part: Any) -> bytes:
    """Return the bytes of rows spread over a tensor, in fp32; small tensors are read whole."""
    shape = part.get_shape()
    if len(shape) < 2 or shape[0] <= _SAMPLED_ROWS:
        tensor = part[:] if shape else part[...]
    else:
        last = shape[0] - 1
        places = sorted({round(at * last / (_SAMPLED_ROWS - 1)) for at in range(_SAMPLED_ROWS)})
        tensor = torch.cat([part[at : at + 1] for at in places])
    return repr(shape).encode() + tensor.to(torch.float32).contiguous().numpy().tobytes()
