"""The healing run of ``revocab``: train-drafter, started from the drafter with its new head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..core.config import apply_overrides, parse_config
from ..core.errors import UsageError
from ..core.files import atomic_write, check_run_folder
from ..models.drafter import Drafter
from ..models.drafter_io import save_drafter
from ..models.drafter_parts import read_target_sizes
from ..models.target import read_target_config
from ..train.config import DataConfig, TrainConfig, TTTConfig

START, RECIPE = "start", "recipe.yaml"
_HEADER = "# Heals "
_GENTLER = 0.1
_INPUTS = ("train", "heldout", "prepared", "cache")


@dataclass(frozen=True)
class HealRequest:
    """What a user asks of the healing run.

    Attributes:
        steps: None heals nothing. data: what it learns from. overrides: ``KEY.SUB=VALUE``.
        folder: of the run: recipe, the drafter that it starts from, checkpoints, the healed drafter.
        of: which drafter it heals, in words; stands above the recipe.
    """

    steps: int | None
    data: tuple[Path, ...]
    overrides: tuple[str, ...]
    folder: Path
    of: str = ""

    def recipe(self, values: Mapping[str, Any]) -> str:
        """Text of the run's recipe."""
        return f"{_HEADER}{self.of}\n" + yaml.safe_dump(dict(values), sort_keys=False)

    def is_new(self, values: Mapping[str, Any], *, overwrite: bool) -> bool:
        """Whether the folder holds another run, which may go.

        Raises:
            UsageError: it holds another run, which may not go.
        """
        former = self.folder / RECIPE
        if not former.is_file() or former.read_text("utf-8") == self.recipe(values):
            return False
        if not overwrite:
            raise UsageError(
                "the healing run's folder holds another run",
                got=former,
                expected="a new folder, or the same command again",
                remedy="give another --heal-output, or pass --overwrite to discard that run",
            )
        return True

    def check(self) -> None:
        """Raises: UsageError: options of healing without it, or healing without data."""
        if self.steps is None:
            given = ["--data"] if self.data else []
            given += [f"the override {self.overrides[0]}"] if self.overrides else []
            if given:
                raise UsageError(
                    "an option of healing means nothing here",
                    got=" and ".join(given),
                    expected="--heal STEPS beside it",
                )
            return
        if not self.data and not any(text.startswith("data.prepared=") for text in self.overrides):
            raise UsageError(
                "healing needs something to learn from",
                expected="--data FILE, or data.prepared=DIR behind the options",
            )
        check_run_folder(self.folder)
        if not self._is_apart():
            raise UsageError(
                "the healing run's folder holds something else",
                got=self.folder,
                expected="a new folder, or that of a healing run",
                remedy="give another --heal-output; nothing was changed",
            )

    def _is_apart(self) -> bool:
        """Whether the folder is new or a healing run's, so that no files of something else are mixed with it."""
        recipe = self.folder / RECIPE
        if recipe.is_file():
            return recipe.read_text("utf-8", errors="replace").startswith(_HEADER)
        names = [one.name for one in self.folder.iterdir()] if self.folder.is_dir() else []
        return all(name == START or name.startswith(".") for name in names)


def heal_config(
    request: HealRequest, kind: str, target: Path, tokenizer: Path, recorded: Mapping[str, Any] | None
) -> tuple[dict[str, Any], TrainConfig]:
    """The recipe of the run, and what it resolves to.

    How text is read (separator, row length, chat template), the training-time test and the batch are those that the
    drafter was trained with, where its manifest records them, at a tenth of its learning rate; else the defaults.

    Args:
        recorded: configuration in the drafter's manifest, or None.

    Raises:
        ConfigError: an override that the configuration does not have.
    """
    former = recorded or {}
    optim = _section(former, "optim")
    positions = read_target_sizes(read_target_config(target)).max_position_embeddings
    longest = min(DataConfig.model_fields["sequence_length"].default, positions)
    values: dict[str, Any] = {
        "target": str(target.resolve()),
        "tokenizer": str(tokenizer.resolve()),
        "output": str(request.folder.resolve()),
        "data": {
            "sequence_length": longest,
            **_known(_section(former, "data"), DataConfig, leave=_INPUTS),
            "train": [str(path.resolve()) for path in request.data],
        },
        "drafter": {"kind": kind, "init": str((request.folder / START).resolve())},
        "ttt": {**_known(_section(former, "ttt"), TTTConfig), "warmup_fraction": 0.0},
        "optim": {"steps": request.steps},
        "run": {"eval_every": request.steps},
    }
    if optim.get("batch_size"):
        values["optim"]["batch_size"] = optim["batch_size"]
    if optim.get("lr"):
        values["optim"]["lr"] = _GENTLER * optim["lr"]
    apply_overrides(values, request.overrides)
    return values, parse_config(TrainConfig, values, source="the healing run")


def heal(
    drafter: Drafter,
    meta: Mapping[str, Any],
    recipe: tuple[HealRequest, Mapping[str, Any], TrainConfig],
    *,
    fresh: bool,
) -> Path:
    """Run it, or go on with it, and return the folder of the healed drafter.

    Args:
        meta: facts that bind a drafter to its target and tokenizer.
        recipe: what was asked for, and what :func:`heal_config` made of it.
        fresh: discard the run that is there.
    """
    from .train_drafter import train_drafter

    request, values, config = recipe
    start = config.drafter.init
    assert start is not None  # heal_config sets it
    save_drafter(start, drafter, meta, config={"target": str(config.target)}, overwrite=True)
    atomic_write(config.output / RECIPE, request.recipe(values))
    train_drafter(overrides=[], config=config.output / RECIPE, plan_only=False, fresh=fresh, as_json=False)
    return config.output / "drafter"


def _section(recorded: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = recorded.get(name)
    return found if isinstance(found, Mapping) else {}


def _known(values: Mapping[str, Any], model: Any, leave: tuple[str, ...] = ()) -> dict[str, Any]:
    """Keys that the configuration still has."""
    return {name: value for name, value in values.items() if name in model.model_fields and name not in leave}
