"""Targets, training checkpoints, drafters and their exports: read from headers, no weight is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...core.console import DataTable
from ...core.errors import ArtifactError
from ...core.files import read_json
from .parts import View, ViewRequest, facts_table, json_names, rows_table, scalars

if TYPE_CHECKING:
    from ...core.artifact import Artifact

Tensors = dict[str, tuple[str, tuple[int, ...]]]


def drafter_view(artifact: Artifact, request: ViewRequest) -> View:
    """Configuration, parameters, head and target of a native drafter."""
    config = _json(artifact, "drafter.json")
    return _drafter(artifact, config, _tensors(artifact, "drafter.safetensors"), ids="target_ids")


def serving_view(artifact: Artifact, request: ViewRequest) -> View:
    """The same of a serving folder."""
    config = _json(artifact, "config.json")
    return _drafter(artifact, config, _tensors(artifact, "model.safetensors"), ids="d2t")


def _drafter(artifact: Artifact, config: Mapping[str, Any], tensors: Tensors, *, ids: str) -> View:
    maps = ("target_ids", "d2t", "t2d")
    weights = {name: entry for name, entry in tensors.items() if name not in maps}
    own = math.prod(tensors[ids][1]) if ids in tensors else None
    facts = {
        "parameters": _parameters(weights),
        "dtype": ", ".join(sorted({dtype for dtype, _ in weights.values()})),
        "head": f"its own, {own:,} rows" if own is not None else _targets_rows(artifact),
    }
    meta, settings = scalars(artifact.meta), _flat(config)
    shown = [
        facts_table({**facts, **meta}, "Drafter"),
        facts_table(settings, "Configuration"),
        _tensor_table(tensors),
    ]
    body = {**facts, **meta, "config": dict(config), "tensors": _tensor_facts(tensors)}
    return View(body, shown)


def _targets_rows(artifact: Artifact) -> str:
    """The target's head, of which a list beside the drafter may name the draft tokens."""
    lists = [name for name in artifact.manifest["files"] if name.startswith("freq_")]
    size = artifact.meta.get("draft_vocab_size")
    return f"the target's, {size:,} rows by {lists[0]}" if lists and size else "the target's"


def head_view(artifact: Artifact, request: ViewRequest) -> View:
    """Kind, sizes, owner and parameters of a ranker, a low-rank head or a router."""
    sizes = _json(artifact, "head.json").get("sizes")
    if not isinstance(sizes, Mapping):
        raise ArtifactError(
            "the draft head's sizes cannot be read",
            got=type(sizes).__name__,
            expected="a mapping under sizes",
            source=artifact.path / "head.json",
        )
    tensors = _tensors(artifact, "head.safetensors")
    facts = {
        "parameters": _parameters({name: entry for name, entry in tensors.items() if name != "assignment"}),
        **artifact.meta,
    }
    # Figures by draft step are a list of mappings, which no line holds; the JSON of the run has them.
    facts = {
        name: value
        for name, value in _flat(facts).items()
        if not (isinstance(value, list) and any(isinstance(item, Mapping) for item in value))
    }
    known = {name: value for name, value in sizes.items() if value is not None}
    shown = [facts_table(facts, "Draft head"), facts_table(known, "Sizes"), _tensor_table(tensors)]
    return View({**facts, "sizes": known, "tensors": _tensor_facts(tensors)}, shown)


def target_view(artifact: Artifact, request: ViewRequest) -> View:
    """Figures of its training, configuration and parameters."""
    config = _json(artifact, "config.json")
    names = [name for name in artifact.manifest["files"] if name.endswith(".safetensors")]
    tensors = {name: entry for file in names for name, entry in _tensors(artifact, file).items()}
    facts = {**scalars(artifact.meta), "parameters stored": _parameters(tensors)}
    body = {**json_names(facts), "config": config, "tensors": _tensor_facts(tensors)}
    return View(body, [facts_table(facts, "Target"), facts_table(_flat(config), "Configuration")])


def checkpoint_view(artifact: Artifact, request: ViewRequest) -> View:
    """Step, what must be equal on resume, and the trained tensors."""
    tensors = _tensors(artifact, "weights.safetensors")
    identity = dict(artifact.meta.get("identity", {}))
    facts = {"step": artifact.meta.get("step"), "parameters": _parameters(tensors)}
    shown = [
        facts_table(facts, "Checkpoint"),
        facts_table(_flat(identity), "Settings of the run"),
        _tensor_table(tensors),
    ]
    return View({**facts, "identity": identity, "tensors": _tensor_facts(tensors)}, shown)


def _json(artifact: Artifact, name: str) -> dict[str, Any]:
    value = read_json(artifact.file(name), "configuration")
    if not isinstance(value, dict):
        raise ArtifactError(
            "the configuration is not a mapping",
            got=type(value).__name__,
            expected="a JSON object",
            source=artifact.path / name,
        )
    return value


def _tensors(artifact: Artifact, name: str) -> Tensors:
    """(dtype, shape) of each tensor, from the file's header."""
    from safetensors import SafetensorError, safe_open

    file = artifact.file(name)
    try:
        with safe_open(str(file), framework="numpy") as handle:
            slices = {key: handle.get_slice(key) for key in sorted(handle.keys())}
            return {key: (one.get_dtype(), tuple(one.get_shape())) for key, one in slices.items()}
    except SafetensorError as error:
        raise ArtifactError(
            "the weights cannot be read",
            got=error,
            source=file,
            remedy="the file may be damaged; make the artefact again",
        ) from error


def _parameters(tensors: Tensors) -> int:
    return sum(math.prod(shape) for _, shape in tensors.values())


def _tensor_facts(tensors: Tensors) -> dict[str, Any]:
    return {name: {"dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in tensors.items()}


def _tensor_table(tensors: Tensors) -> DataTable:
    rows = [
        {"name": name, "dtype": dtype, "shape": " x ".join(map(str, shape))}
        for name, (dtype, shape) in tensors.items()
    ]
    return rows_table("Tensors", rows)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found
