"""The models and draft heads of a run; each folder is loaded once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...core.artifact import MANIFEST, Artifact, open_artifact
from ...core.console import say
from ...core.errors import ArtifactError, DataError, UnsupportedError
from ...core.registry import check_known
from ...core.threads import core_count, user_threads
from ...core.values import Backend
from ...corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from ...layouts.registry import load_drafter
from ...models.backends import load_decoding_target
from ...models.device import choose_device
from ...models.drafters.interface import Drafter
from ...models.drafters.io import check_target, trained_for
from ...models.heads.io import HeadOwner, LoadedHead, drafter_digest, load_head
from ...models.lean.config import find_family
from ...models.target.fingerprint import target_fingerprint
from ...models.target.head import TargetTensors
from ...models.target.hf import check_tokenizer_fits
from ...models.target.interface import Target
from ...models.target.load import DTYPES, read_target_config
from .heads import BuiltHead

if TYPE_CHECKING:
    from ...vocab.overlap.bridge import Bridge

_TARGET_KIND = "target"  # a converted GGUF target, or the trained target of an earlier version


def keep_to_quota() -> None:
    """Lower torch's threads to a container's CPU quota, unless the user has set them: OpenMP counts all cores."""
    if not user_threads() and torch.get_num_threads() > core_count():
        torch.set_num_threads(core_count())


class Models:
    """A target and the models that draft for it, loaded on first use and kept, in one dtype (of ``DTYPES``).

    ``built`` holds draft heads over an exact head, by the request; ``bridges`` hold those between the
    target's vocabulary and another, by its fingerprint and the saved overlap. ``backend`` and ``device_map``:
    see :func:`~vocabforge.models.backends.load_decoding_target`; ``model``: the target, if already loaded.
    """

    def __init__(
        self,
        target: Path,
        tokenizer: Path | None = None,
        *,
        device: str | None = None,
        dtype: str = "float32",
        backend: Backend = "auto",
        device_map: str | None = None,
        model: Target | None = None,
    ) -> None:
        check_known(dtype, DTYPES, "dtype")
        keep_to_quota()
        self.target = target
        self.model: Target = model or load_decoding_target(
            target, backend, dtype=DTYPES[dtype], device=choose_device(device), device_map=device_map
        )
        self.tokenizer: TextTokenizer = load_tokenizer(tokenizer or target, rows=self.model.config.vocab_size)
        check_tokenizer_fits(
            self.tokenizer.vocab_size,
            self.model.config.vocab_size,
            tokenizer=self.tokenizer.source,
            target=target,
        )
        self._drafters: dict[Path, tuple[Drafter, Artifact | None]] = {}
        self._models: dict[Path, Target] = {}
        self._owners: dict[Path, HeadOwner] = {}
        self._trained: dict[Path, LoadedHead] = {}
        self.built: dict[tuple[Any, ...], BuiltHead | None] = {}
        self.bridges: dict[tuple[str, Path | None], Bridge] = {}

    def drafter(self, path: Path) -> tuple[Drafter, Artifact | None]:
        """Return a trained drafter of any layout over the target's tensors, and its artefact if it is one."""
        if path not in self._drafters:
            tensors = TargetTensors(self.model.embedding, self.model.lm_head_weight, self.model.transform)
            drafter, artifact = load_drafter(path, tensors, self.target)
            expected = trained_for(artifact)
            # Another quantisation may store the same tokenizer with a different fingerprint.
            if expected and expected != self.tokenizer.fingerprint and self._own_weights(artifact):
                # Different ids with matching sizes would only lower acceptance, without an error.
                say(
                    f"Warning: the drafter was trained with another tokenizer than {self.tokenizer.source}; "
                    "expect poor acceptance."
                )
            self._drafters[path] = drafter, artifact
        return self._drafters[path]

    def _own_weights(self, artifact: Artifact | None) -> bool:
        """Return whether a drafter was trained for exactly these target weights, as far as known."""
        if artifact is None:
            return True
        return check_target(artifact, target_fingerprint(self.target), target=self.target, quiet=True)

    def language_model(self, path: Path) -> Target:
        """Return a draft model in the target's dtype and on its device."""
        if path not in self._models:
            self._models[path] = load_decoding_target(
                path, dtype=self.model.dtype, device=self.model.device, role="draft model"
            )
        return self._models[path]

    def trained_head(self, path: Path) -> LoadedHead:
        """Return a trained draft head in the target's dtype and on its device."""
        if path not in self._trained:
            self._trained[path] = load_head(path, device=self.model.device, dtype=self.model.dtype)
        return self._trained[path]

    def owner(self, path: Path) -> HeadOwner:
        """Return the owner for which a head must be trained to be used with the drafter in a folder."""
        if path not in self._owners:
            prints = target_fingerprint(self.target), self.tokenizer.fingerprint
            self._owners[path] = HeadOwner(drafter_digest(path), *prints)
        return self._owners[path]


def is_draft_model(path: Path) -> bool:
    """Return whether a folder holds a whole language model, and not a drafter or a target's MTP module."""
    if not (path / "config.json").is_file():
        return False
    try:
        if (path / MANIFEST).is_file() and open_artifact(path, verify=False).kind != _TARGET_KIND:
            return False
        config = read_target_config(path)
        if not _is_language_model(config, path):
            return False
    except (ArtifactError, DataError):
        return False
    from ...layouts.kinds import is_drafter_folder

    return not is_drafter_folder(path)


def _is_language_model(config: Mapping[str, Any], path: Path) -> bool:
    try:
        find_family(config, path)
    except UnsupportedError:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        from ...layouts.mtp import Mtp

        known = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()}
        return not Mtp.matches(config) and not known.isdisjoint(config.get("architectures") or ())
    return True
