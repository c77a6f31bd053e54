"""Table of export formats, and loading of drafters from any of them."""

from __future__ import annotations

from pathlib import Path

import torch

from ..core.artifact import MANIFEST, Artifact, open_artifact
from ..core.console import say
from ..core.errors import DataError, MismatchError
from ..core.registry import ExtensionTable, resolve
from ..models.drafters.interface import Drafter
from ..models.drafters.io import check_target, trained_for
from ..models.drafters.revocab import prune_head
from ..models.target.fingerprint import target_fingerprint
from ..models.target.head import TargetTensors
from ..models.target.load import read_target_config
from ..models.target.text_config import hidden_layers
from ..vocab.subset.subset import load_subset
from .fields import PLAIN, read_config
from .interface import Layout
from .kinds import EAGLE1, EAGLE3, MEDUSA, ambiguous, evidence

# name -> "module:attr" of a class as in interface.Layout. To add a layout, add a file and a row. Tried in this
# order.
FORMATS = ExtensionTable(
    "vocabforge.layouts",
    {
        "native": "vocabforge.layouts.native:Native",
        "vllm": "vocabforge.layouts.vllm:VllmEagle3",
        "sglang-eagle3": "vocabforge.layouts.eagle3:SglangEagle3",
        "speculators-block": "vocabforge.layouts.speculators_block:SpeculatorsBlock",
        "speculators-eagle3": "vocabforge.layouts.speculators:SpeculatorsEagle3",
        "block": "vocabforge.layouts.block:ServedBlock",
        "eagle": "vocabforge.layouts.eagle1:Eagle",
        "fr-spec": "vocabforge.layouts.eagle1:FrSpec",
        "gguf": "vocabforge.layouts.gguf.layout:Gguf",
        "medusa": "vocabforge.layouts.medusa:Medusa",
        "mtp": "vocabforge.layouts.mtp:Mtp",
    },
)


def layout_of(name: str) -> type[Layout]:
    """Return the layout of a name; raise UsageError if it is unknown."""
    layout: type[Layout] = resolve(FORMATS, name, "export format")
    return layout


def load_drafter(path: Path, target: TargetTensors, target_path: Path) -> tuple[Drafter, Artifact | None]:
    """Load a drafter from a native artefact, an export, or a serving folder written by another tool.

    Raises:
        VocabForgeError: nothing can be loaded, files are damaged, or the drafter is for another target.
    """
    layers = hidden_layers(read_target_config(target_path), target_path)
    if (path / MANIFEST).is_file():
        artifact = open_artifact(path)
        layouts = map(layout_of, FORMATS.usable())  # lazy: imports layouts until one matches
        kind = next((layout for layout in layouts if artifact.kind == layout.KIND), None)
        if kind is None:
            open_artifact(path, tuple(layout_of(name).KIND for name in FORMATS.usable()))  # raises
        assert kind is not None
        if path.resolve() != target_path.resolve():  # otherwise it is the target's own MTP module
            check_target(artifact, target_fingerprint(target_path), target=target_path)
        return _checked(kind.read(path, target, layers), layers, path), artifact
    made = path / "drafter"
    if (made / MANIFEST).is_file():  # a training run also has a config.json
        raise DataError("no drafter here", got=f"{path}, a training run", remedy=f"give {made}")
    if (path / "config.json").is_file() and (layout := folder_layout(path)) is not None:
        body = read_config(path)
        if not layout.matches(body) and body.get("architectures") != PLAIN:
            say(
                f"{path.name}: read as {layout.NAME} by its tensors; architectures {body.get('architectures')}"
            )
        return _checked(layout.read(path, target, layers), layers, path), None
    if any(path.glob("*.gguf")):
        return _checked(layout_of("gguf").read(path, target, layers), layers, path), None
    raise DataError(
        "no drafter here",
        got=path if path.exists() else f"{path} (no such folder)",
        expected=f"a drafter in one of the layouts {', '.join(FORMATS)}, or a smaller language model of any vocabulary "
        "in Hugging Face's",
        remedy="check the path; or train one with vocabforge train-drafter",
    )


def folder_layout(path: Path) -> type[Layout] | None:
    """Return the layout of a folder with a ``config.json``; None if nothing in it is a drafter's.

    EAGLE and Medusa are told by their tensors, whatever the configuration calls them. A contradiction between
    tensors is left to the reader of the configured architecture, if there is one.

    Raises:
        DataError: no architecture is configured, and weights are missing, damaged or of several kinds.
    """
    body = read_config(path)
    usable = map(layout_of, FORMATS.usable())  # lazy: imports layouts until one matches
    named = next((layout for layout in usable if layout.matches(body)), None)
    if named is not None and named.NAME not in (EAGLE3, EAGLE1, MEDUSA):
        return named
    try:
        clues_by_layout = evidence(path)
    except DataError:
        if named is None and not any(path.glob("*.gguf")):
            raise
        return named  # its reader raises
    if len(clues_by_layout) > 1 and (named is None or body.get("architectures") == PLAIN):
        raise ambiguous(clues_by_layout, path)
    return layout_of(next(iter(clues_by_layout))) if len(clues_by_layout) == 1 else named


def _checked(drafter: Drafter, layers: int, path: Path) -> Drafter:
    if max(drafter.config.aux_layers, default=0) >= layers:
        raise MismatchError(
            "the drafter reads layers that the target does not have",
            got=f"auxiliary layers {list(drafter.config.aux_layers)} (0-based)",
            expected=f"at most {layers - 1}",
            source=path,
            remedy="give the target that it was trained for",
        )
    for name, tensor in drafter.named_parameters():
        # The server would run, but accept nothing.
        if not tensor.is_meta and not bool(torch.isfinite(tensor).all()):
            raise DataError(
                "the drafter's weights are not finite",
                got=f"NaN or infinity in {name}",
                source=path,
                remedy="the checkpoint is damaged: fetch or train it again",
            )
    return drafter


def restrict(drafter: Drafter, vocab: Path, artifact: Artifact | None) -> Drafter:
    """Prune the head with :func:`~vocabforge.models.drafters.revocab.prune_head` after comparing tokenizers."""
    owner = f"the drafter {artifact.path if artifact else ''}"
    return prune_head(drafter, load_subset(vocab, trained_for(artifact), owner=owner), source=vocab)
