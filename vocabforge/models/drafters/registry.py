"""The table of drafters, and the creation of drafters for a target."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...core.errors import ConfigError, MismatchError
from ...core.registry import ExtensionTable, resolve
from ..target.logits import IDENTITY, LogitTransform
from .interface import Drafter
from .parts import read_target_sizes

# name -> "module:attr" of a class with .kind (the name) and .sizes_type (with from_dict and from_target)
DRAFTERS = ExtensionTable(
    "vocabforge.drafters",
    {
        "eagle3": "vocabforge.models.drafters.eagle3:Eagle3Drafter",
        "eagle1": "vocabforge.models.drafters.eagle1:Eagle1Drafter",
        "medusa": "vocabforge.models.drafters.medusa:MedusaDrafter",
        "mtp": "vocabforge.models.drafters.mtp:MtpDrafter",
        "peagle": "vocabforge.models.drafters.peagle:PEagleDrafter",
        "dflash": "vocabforge.models.drafters.dflash:DFlashDrafter",
        "dspark": "vocabforge.models.drafters.dspark:DSparkDrafter",
    },
)


def drafter_class(kind: str) -> Any:
    """Return the class of a kind of drafter.

    Raises:
        UsageError: the kind is unknown.
    """
    return resolve(DRAFTERS, kind, "kind of drafter")


def drafter_sizes(kind: str, target: Mapping[str, Any], **wishes: Any) -> Any:
    """Return a drafter's sizes: ``wishes``, values by field, over those of the target (``config.json``).

    Raises:
        MismatchError: the target's configuration lacks a size, or the auxiliary layers do not exist.
        ConfigError: the sizes are inconsistent, or this kind does not have a field of ``wishes``.
    """
    sizes_type = drafter_class(kind).sizes_type
    return sizes_type.from_target(read_target_sizes(target), _given(kind, wishes))


def check_wishes(sizes: Any, wishes: Mapping[str, Any], *, source: object) -> None:
    """Check that a trained drafter's sizes match ``wishes``; None values are not checked.

    Raises:
        MismatchError: a size differs.
        ConfigError: this kind does not have a field of ``wishes``.
    """
    for name, wish in _given(sizes.kind, wishes).items():
        if getattr(sizes, name) != wish:
            raise MismatchError(
                f"the drafter to start from has a different drafter.{name}",
                got=wish,
                expected=getattr(sizes, name),
                source=source,
                remedy=f"leave drafter.{name} out: a trained drafter keeps its sizes",
            )


def _given(kind: str, wishes: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in wishes.items() if value is not None}
    known = {field.name for field in dataclasses.fields(drafter_class(kind).sizes_type)}
    foreign = [name for name in given if name not in known]
    if foreign:
        overrides = " ".join(f"drafter.{name}=null" for name in foreign)
        raise ConfigError(
            "this kind of drafter does not have these sizes",
            got=", ".join(f"drafter.{name}" for name in foreign),
            expected=f"drafter.kind={kind} without them",
            remedy=f"leave them out; over a recipe that has them: {overrides}",
        )
    return given


def new_drafter(
    kind: str,
    sizes: Any,
    embedding: Tensor,
    target_head: Tensor,
    target_ids: Tensor | None = None,
    transform: LogitTransform = IDENTITY,
) -> Drafter:
    """Create an untrained drafter.

    Raises:
        MismatchError: the target's tensors, or the ids, do not fit the sizes.
    """
    drafter: Drafter = drafter_class(kind)(sizes, embedding, target_head, target_ids)
    drafter.target_transform = transform
    return drafter
