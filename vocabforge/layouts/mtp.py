"""Read a target's own MTP module from its checkpoint shards, and write a trained one back.

The export consists of the shards that hold the module, under their original file names. Only the values of
the module's tensors differ from the checkpoint; names, shapes, dtypes and all other bytes are unchanged. Copy
these files over the target's shards (or use ``--with-target`` for a whole checkpoint), and servers draft with
the module as with the published one. The target's output does not change: Transformers does not load these
tensors.

A draft vocabulary is a list of the target's ids beside the shards, ``freq_<R>.pt``. SGLang takes it with
``--speculative-token-map`` and drafts over these rows of the target's head (FR-Spec, Zhao et al. 2025).
"""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.artifact import MANIFEST
from ..core.errors import DataError, MismatchError
from ..core.files import form_errors
from ..models.checkpoint import (
    DTYPES,
    FLOATS,
    StoredTensor,
    checkpoint_files,
    copy_with,
    disagreements,
    fill,
    load_stored,
    read_headers,
)
from ..models.drafters.interface import Drafter
from ..models.drafters.io import assemble, check_own_embedding
from ..models.drafters.mtp import MtpConfig, MtpDrafter
from ..models.drafters.mtp_families import FAMILIES, stored_views
from ..models.target.head import TargetTensors
from ..models.target.load import dtype_name
from ..models.target.text_config import text_config
from .eagle1 import TOKEN_MAPS, has_targets_rows, restricted, token_map, write_token_map
from .eagle3_folder import LM_HEAD, rounded_alike
from .fields import CONFIG, read_config
from .interface import Export, layout_folder

_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
# Copies of the target's, which some families store.
_HEAD, _EMBEDDING = "shared_head.head.weight", "embed_tokens.weight"
_FC = "fc.weight"
# Above this ratio of expected to stored numbers, missing tensors are not listed one by one.
_MOST_MISSING = 64


@dataclass(frozen=True)
class StoredModule:
    """A module in a checkpoint: sizes, the target's number of layers, and stored tensors by full name."""

    sizes: MtpConfig
    layers: int
    prefix: str
    stored: Mapping[str, StoredTensor]

    def views(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return our tensors under the checkpoint's names."""
        assert self.sizes.family is not None
        body = {name: tensor for name, tensor in tensors.items() if name != LM_HEAD}
        views = dict(stored_views(self.sizes.family, self.layers, body, self.stored))
        return views | ({self.prefix + _HEAD: tensors[LM_HEAD]} if LM_HEAD in tensors else {})


class Mtp:
    """The shards of a target's checkpoint that hold its MTP module."""

    NAME = "mtp"
    KIND = "export-mtp"

    @staticmethod
    def matches(body: Mapping[str, Any]) -> bool:
        """Return whether the target's configuration counts MTP modules or belongs to a known family."""
        return _modules(body) > 0

    @staticmethod
    def write(path: Path, export: Export) -> None:
        drafter, target = _of_family(export.drafter, export.shared), export.target_path
        assert target is not None
        module = open_module(target)
        tensors = drafter.state_dict()
        limited = len(drafter.target_ids) < drafter.config.vocab_size
        if limited:
            tensors.pop(LM_HEAD, None)  # rows of the target's head, which the servers cut
        wanted = module.views(tensors)
        replaced = {name: item for name, item in module.stored.items() if name in wanted}
        if problems := disagreements(replaced, wanted):
            raise MismatchError(
                "the drafter is not a module of this target's",
                got="; ".join(problems[:5]),
                expected=f"the tensors of {module.prefix}* in the target's checkpoint",
                source=target,
                remedy="give the target that it was trained for",
            )
        stored = DTYPES[module.stored[module.views({_FC: tensors[_FC]}).popitem()[0]].dtype]
        if stored != export.dtype:
            raise MismatchError(
                "a module is written in the dtype that the checkpoint has it in",
                got=f"--dtype {dtype_name(export.dtype)}",
                expected=f"--dtype {dtype_name(stored)}",
            )
        files = {module.stored[name].file for name in wanted}
        with layout_folder(path, Mtp.KIND, export) as folder:
            for file in sorted(files):
                inside = {name: tensor for name, tensor in wanted.items() if module.stored[name].file == file}
                copy_with(file, folder / file.name, inside)
            shutil.copyfile(target / CONFIG, folder / CONFIG)
            for file in sorted(target.iterdir()) if export.with_target else ():
                # A list restricts another drafter.
                kept = file.name != MANIFEST and not file.match(TOKEN_MAPS)
                if file.is_file() and kept and not (folder / file.name).exists():
                    shutil.copyfile(file, folder / file.name)
            if limited:
                write_token_map(folder, export)

    @staticmethod
    def read(path: Path, shared: TargetTensors, num_layers: int) -> Drafter:
        """Read a folder strictly; an embedding and LM head that equal the target's are shared.

        A token map in the folder restricts the head.
        """
        module = open_module(path)
        stored = dict(module.stored)
        copies = [module.prefix + name for name in (_HEAD, _EMBEDDING)]
        loaded = load_stored({name: stored.pop(name) for name in copies if name in stored}, torch.float32)
        head, embedding = map(loaded.get, copies)
        if embedding is not None:
            check_own_embedding(embedding, shared, path)
        sizes = module.sizes
        with torch.device("meta"):
            rows = torch.empty(sizes.vocab_size, sizes.hidden_size)
            blank = MtpDrafter(sizes, rows, rows)
        parameters, shapes = dict(blank.named_parameters()), blank.state_dict()
        numbers = sum(math.prod(item.shape) for item in stored.values())
        if sum(meta.numel() for meta in shapes.values()) > _MOST_MISSING * numbers:
            raise _another(f"experts or sizes for far more than {numbers:,} numbers", "those stored", path)
        wanted = module.views(shapes)
        if problems := disagreements(stored, wanted):
            raise _another("; ".join(problems[:5]), f"{len(wanted)} tensors {module.prefix}*", path)
        tensors = {
            name: torch.empty(meta.shape, dtype=shared.embedding.dtype if name in parameters else meta.dtype)
            for name, meta in shapes.items()
        }
        places = module.views(tensors)
        fill(stored, {name: (place,) for name, place in places.items()})
        if head is not None and not rounded_alike(head, shared.head):
            sizes = dataclasses.replace(sizes, draft_vocab_size=sizes.vocab_size)
            tensors[LM_HEAD] = head.to(shared.embedding.dtype)
        drafter: Drafter = assemble(sizes, tensors, None, shared, source=path)
        listed = token_map(path)
        return drafter if listed is None else restricted(drafter, listed)


def open_module(path: Path) -> StoredModule:
    """Find the MTP module of a target's folder from the headers of its shards.

    Raises:
        DataError: there is none, it is quantised, or files are missing.
        MismatchError: the family is not supported, or there are several modules.
    """
    body = read_config(path)
    text = _text(body)
    family, count = text.get("model_type"), _modules(body)
    if not isinstance(family, str) or family not in FAMILIES or count != 1:
        raise MismatchError(
            "this target's MTP modules are not computed here",
            got=f"model_type {family}, {count} modules",
            expected=f"one module of {', '.join(FAMILIES)}",
            source=path / CONFIG,
            remedy="train a drafter for it (vocabforge train-drafter)",
        )
    layer = {key: value for key, value in text.items() if key not in ("quantization_config", "auto_map")}
    with form_errors("the sizes of the MTP module cannot be read", path / CONFIG, kind=DataError):
        sizes = MtpConfig.of_family(layer)
        layers = int(text_config(layer, path / CONFIG).num_hidden_layers)
    prefix = FAMILIES[family].prefix.format(n=layers)
    stored = {
        name: item for name, item in read_headers(checkpoint_files(path)).items() if name.startswith(prefix)
    }
    if not stored:
        raise DataError(
            "the checkpoint has no MTP module",
            got=f"no tensor {prefix}*",
            expected="the checkpoint as it was published: save_pretrained leaves the module out",
            source=path,
            remedy="fetch the published checkpoint, or train a fresh module (drafter.kind=mtp without drafter.init)",
        )
    packed = [f"{name} ({item.dtype})" for name, item in stored.items() if item.dtype not in FLOATS]
    if packed:
        raise DataError(
            "the checkpoint's MTP module is quantised",
            got=", ".join(packed[:3]),
            expected=", ".join(FLOATS),
            source=path,
            remedy="give the checkpoint that it was quantised from with --drafter, or drafter.init",
        )
    return StoredModule(sizes, layers, prefix, stored)


def _text(body: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = body.get("text_config")
    return inner if isinstance(inner, Mapping) else body


def _modules(body: Mapping[str, Any]) -> int:
    """Return the number of MTP modules in a configuration; a known family without a count has one."""
    text = _text(body)
    counted = [value for key in _COUNTS if type(value := text.get(key)) is int]
    return counted[0] if counted else int(str(text.get("model_type")) in FAMILIES)


def _another(got: str, expected: str, path: Path) -> DataError:
    return DataError(
        "the checkpoint's MTP module is not the one of its configuration",
        got=got,
        expected=expected,
        source=path,
        remedy="use the config.json that was saved with these weights; fetch missing files again",
    )


def _of_family(drafter: Drafter, shared: TargetTensors) -> MtpDrafter:
    if not isinstance(drafter, MtpDrafter) or drafter.config.family is None:
        raise MismatchError(
            "the layout mtp holds a target's own MTP module only",
            got=f"a drafter of kind {drafter.kind}"
            + (" with a layer of no family" if isinstance(drafter, MtpDrafter) else ""),
            expected="one that started from the target's (drafter.kind=mtp drafter.init=TARGET)",
            remedy="export --format native, which vocabforge eval and generate read",
        )
    if len(drafter.target_ids) < drafter.config.vocab_size and not has_targets_rows(drafter, shared):
        raise MismatchError(
            "a checkpoint has no place for the trained head of a draft vocabulary",
            got=f"{len(drafter.target_ids):,} rows that are not the target's",
            expected="the target's rows",
            remedy="train with drafter.head: target, or export --format native",
        )
    return drafter
