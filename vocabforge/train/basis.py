"""What follows from a configuration before weights and data are read: sizes, loss, what a resumed run must share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.distributed import Group
from ..core.errors import MismatchError, UsageError
from ..core.files import check_run_folder
from ..corpus.tokenizer import TextTokenizer, load_tokenizer
from ..models.drafter_io import native_sizes
from ..models.drafters import check_wishes, drafter_sizes
from ..models.head_io import drafter_digest
from ..models.target import check_row_length, read_target_config
from ..vocab.subset import VocabSubset, load_subset
from .batches import divide
from .config import DrafterConfig, TrainConfig
from .data import with_prepared
from .draft_heads import KINDS, configured
from .step import StepSettings
from .strategy import wanted_strategy
from .tracker_table import check_trackers
from .vocab_loss import LossOptions

# (feature weight, token weight, feature noise): EAGLE-1 learns to predict hidden states, and little from tokens.
_PUBLISHED: Mapping[str, tuple[float, float, float]] = {"eagle1": (1.0, 0.1, 0.1)}


@dataclass(frozen=True)
class Basis:
    """What a run stands on.

    Attributes:
        config: with what prepared data say filled in.
        target: the target's ``config.json``.
        tokenizer: the target's, or the one that is named.
        subset: the draft vocabulary; None for all tokens.
        sizes: of the drafter.
    """

    config: TrainConfig
    target: Mapping[str, Any]
    tokenizer: TextTokenizer
    subset: VocabSubset | None
    sizes: Any


def read_basis(config: TrainConfig, group: Group) -> Basis:
    """Read what is small, and refuse what does not go together before anything large is read.

    Raises:
        DataError: the target or its tokenizer cannot be read.
        ConfigError: the batch cannot be divided over the processes; keys that contradict ``drafter.init``.
        UsageError: what was launched does not go with the configuration; rows longer than the context.
        ArtifactError: the prepared data, the draft vocabulary or the drafter to start from cannot be opened.
        MismatchError: they are of another target or tokenizer.
    """
    config = config.model_copy(update={"data": with_prepared(config.data)})
    divide(config.optim, group.rank, group.size)
    wanted_strategy(config.run.strategy, group)
    check_trackers(config.run.trackers)
    check_run_folder(config.output)
    target = read_target_config(config.target)
    tokenizer = load_tokenizer(config.tokenizer or config.target)
    subset = _draft_vocabulary(config.drafter, tokenizer)
    sizes = sizes_of(config.drafter, target, subset)
    check_row_length(target, config.data.sequence_length, source=config.target / "config.json")
    return Basis(config, target, tokenizer, subset, sizes)


def step_settings(config: TrainConfig) -> StepSettings:
    """How the loss is put together: the configured weights, or the kind's own.

    Raises:
        UsageError: nothing is left to train.
    """
    feature, token, noise = _PUBLISHED.get(config.drafter.kind, (0.0, 1.0, 0.0))
    ttt = config.ttt
    heads = tuple((name, head.weight) for name, head in configured(config.heads).items())
    if config.drafter.freeze and not heads:
        raise UsageError(
            "drafter.freeze leaves nothing to train",
            expected=" or ".join(f"heads.{key}" for key in KINDS),
            remedy="name a head, or leave drafter.freeze off",
        )
    return StepSettings(
        decay=ttt.decay,
        token_weight=token if ttt.token_weight is None else ttt.token_weight,
        feature_weight=feature if ttt.feature_weight is None else ttt.feature_weight,
        feature_noise=noise if ttt.feature_noise is None else ttt.feature_noise,
        head_weights=heads,
        freeze=config.drafter.freeze,
        attention=config.memory.attention,
        checkpointing=config.memory.checkpointing,
        loss=LossOptions(config.memory.loss, config.memory.chunk_mb),
    )


def identity_of(config: TrainConfig, data_digest: str, fingerprint: str) -> dict[str, Any]:
    """What must be equal for a run to be continued: everything that changes a weight, nothing that does not.

    The number of processes and the size of micro-batches are not among it: they divide the same batch.
    """
    body = config.model_dump(mode="json")
    flat = {
        f"{section}.{key}": value
        for section in ("drafter", "heads", "ttt", "optim", "memory")
        for key, value in body[section].items()
        if (section, key) != ("optim", "micro_batch_size")
    }
    # Keys of earlier versions at the only value they still have, so that their runs resume.
    flat |= {"drafter.copying": False, "memory.candidates": None}
    flat["run.seed"] = config.run.seed
    flat["data"] = data_digest
    flat["target"] = fingerprint
    if config.drafter.vocab is not None:
        flat["drafter.vocab"] = load_subset(config.drafter.vocab).digest()
    if config.drafter.init is not None:
        flat["drafter.init"] = drafter_digest(config.drafter.init)
        # Beside the weights' digest: some sizes, such as where norms stand, shape no tensor.
        flat["drafter.init sizes"] = native_sizes(config.drafter.init).to_dict()
    return json.loads(json.dumps(flat))


def _draft_vocabulary(config: DrafterConfig, tokenizer: TextTokenizer) -> VocabSubset | None:
    """The subset that ``drafter.vocab`` names, checked to be of this tokenizer."""
    if config.vocab is None:
        return None
    subset = load_subset(config.vocab)
    subset.check_tokenizer(tokenizer, source=config.vocab)
    return subset


def sizes_of(config: DrafterConfig, target: Mapping[str, Any], subset: VocabSubset | None) -> Any:
    """Sizes of the drafter: those of ``drafter.init``, else the target's where the configuration leaves them out.

    Raises:
        MismatchError: the target's configuration lacks a size, the subset is of another vocabulary, or
            ``drafter.init`` is of another kind.
        ConfigError: the configuration contradicts ``drafter.init``.
    """
    vocab = int(target.get("vocab_size") or 0)
    if subset is not None and subset.vocab_size > vocab:
        raise MismatchError(
            "the draft vocabulary is larger than the target's",
            got=f"ids up to {subset.vocab_size - 1}",
            expected=f"below {vocab}",
            source=config.vocab,
            remedy="select one from counts made with this target's tokenizer",
        )
    rows = None
    if config.head == "own":
        rows = vocab if subset is None else len(subset.ids)
    wishes = {
        "draft_vocab_size": rows,
        "aux_layers": tuple(config.aux_layers) if config.aux_layers else None,
        "intermediate_size": config.intermediate_size,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "medusa_heads": config.medusa_heads,
    }
    if config.init is None:
        return drafter_sizes(config.kind, target, **wishes)
    sizes = native_sizes(config.init)
    if sizes.kind != config.kind:
        raise MismatchError(
            "drafter.init is of another kind",
            got=sizes.kind,
            expected=f"drafter.kind {config.kind}",
            source=config.init,
            remedy="set drafter.kind to that of drafter.init",
        )
    check_wishes(sizes, wishes, source=config.init)
    return sizes
