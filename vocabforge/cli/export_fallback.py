"""``vocabforge export --head``: a static fallback for servers, with the dynamic head beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .app import stdout_console

if TYPE_CHECKING:
    from ..decode.build_models import Models
    from ..evaluate.fallback import FallbackRequest
    from ..evaluate.live_prompts import LivePrompts
    from ..export.layout import Export, Layout
    from ..models.drafter import Drafter
    from ..models.head_io import HeadOwner
    from ..vocab.subset import VocabSubset

# Formats that hold a static draft vocabulary -> the kind of drafter that they hold.
STATIC_MAPS = {"sglang-eagle3": "eagle3", "speculators-eagle3": "eagle3", "fr-spec": "eagle1"}
PROMPTS, NEW_TOKENS, PROMPT_TOKENS = 48, 128, 2048  # prompts, and most tokens of each answer and prompt
DYNAMIC = "dynamic"


@dataclass(frozen=True)
class Asked:
    """The options of ``export`` that concern a fallback, and what they stand beside.

    Attributes:
        drafter: its folder. target: the target's.
        vocabs: subset artefacts that are measured, too.
        dtype: of what is written, a name.
    """

    format_name: str
    drafter: Path
    target: Path
    head: Path | None
    size: int | None
    prompts: Path | None
    vocabs: Sequence[Path]
    dtype: str


@dataclass(frozen=True)
class Chosen:
    """What an export is written from, and what it says.

    Attributes:
        drafter: over the static draft vocabulary. ranked: its ids in rank order.
        meta, parents: for the manifest. card: a section of the model card.
        beside: writes ``dynamic/``.
    """

    drafter: Drafter
    ranked: tuple[int, ...]
    meta: Mapping[str, Any]
    parents: Mapping[str, str]
    card: str
    beside: Callable[[Path], object]

    def print(self) -> None:
        """The comparison for people."""

        from ..evaluate.fallback_report import tables, verdict

        out = stdout_console()
        for table in tables(self.meta["fallback"]):
            out.print(table)
        out.print(verdict(self.meta["fallback"]), markup=False, soft_wrap=True)


def check_fallback(asked: Asked, kind: str) -> None:
    """Refuse, before anything is measured, what cannot be exported so.

    Args:
        kind: of the drafter.

    Raises:
        UsageError: options without their use, no prompts, or a format without a static map.
        MismatchError: the format does not hold this kind of drafter.
    """
    from ..core.errors import MismatchError, UsageError

    if asked.head is None:
        options = {"--fallback-size": asked.size, "--prompts": asked.prompts}
        if given := [name for name, value in options.items() if value is not None]:
            raise UsageError(
                "there is no draft head to find a static fallback for",
                got=", ".join(given),
                expected="--head DIR beside it",
            )
        return
    if asked.format_name not in STATIC_MAPS:
        raise UsageError(
            "this format holds no static draft vocabulary that could stand for a draft head",
            got=f"--head with --format {asked.format_name}",
            expected=", ".join(STATIC_MAPS),
            remedy="vocabforge eval and generate take --head as it is",
        )
    if kind != STATIC_MAPS[asked.format_name]:
        raise MismatchError(
            "the format does not hold this kind of drafter",
            got=f"--format {asked.format_name} for a drafter of kind {kind}",
            expected=STATIC_MAPS[asked.format_name],
            source=asked.drafter,
        )
    if asked.prompts is None:
        raise UsageError(
            "a static fallback is chosen by measurement, and there is nothing to measure on",
            expected="--prompts FILE with held-out prompts",
            remedy="train-drafter leaves some in OUTPUT/heldout_prompts.jsonl",
        )


def try_layout(layout: type[Layout], output: Path, export: Export) -> None:
    """Refuse, before anything is measured, a drafter that the layout cannot express over a static vocabulary.

    Args:
        output: the folder to be made; what is tried is written beside it, and removed.
        export: with the drafter's own head.

    Raises:
        VocabForgeError: what the layout's writer raises.
    """
    import tempfile

    from ..export.prune import prune_head
    from ..vocab.subset import VocabSubset

    drafter = export.drafter
    few = drafter.target_ids[:2].cpu().numpy()
    subset = VocabSubset.from_ranked(few, vocab_size=drafter.config.vocab_size, fingerprint="")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
        tried = dataclasses.replace(export, drafter=prune_head(drafter, subset, source=output))
        layout.write(Path(folder) / "tried", tried)


def choose(asked: Asked, loaded: Drafter) -> Chosen:
    """Choose the static draft vocabulary that stands for ``asked.head``.

    Args:
        loaded: the drafter with its own head; :attr:`Chosen.beside` writes it.

    Raises:
        VocabForgeError: anything missing, damaged, or not belonging together.
    """
    from ..core.artifact import open_artifact
    from ..evaluate.fallback import choose_fallback
    from ..evaluate.fallback_report import card_section, facts_of
    from ..export.prune import prune_head

    assert asked.head is not None
    models = _models(asked)
    request = _request(asked, models)  # says what does not belong together, before anything is measured
    own, _ = models.drafter(asked.drafter)
    found = choose_fallback(models.model, own, _prompts(asked, models), request)
    facts = facts_of(found)
    vocabs = {f"vocab {path}": open_artifact(path, "subset").content_hash for path in asked.vocabs}
    return Chosen(
        prune_head(loaded, found.subset, source=asked.head),
        tuple(found.subset.ranked.tolist()),
        {"fallback": facts},
        {"head": open_artifact(asked.head).content_hash, **vocabs},
        card_section(facts),
        lambda folder: _write_dynamic(
            folder / DYNAMIC, asked, loaded, found.subset, models.owner(asked.drafter)
        ),
    )


def _models(asked: Asked) -> Models:
    """The target as it is measured: in fp32 on a CPU, in the exported dtype on a GPU."""
    from ..decode.build_models import Models
    from ..models.device import choose_device

    dtype = "float32" if choose_device(None).type == "cpu" else asked.dtype
    return Models(asked.target, dtype=dtype)


def _request(asked: Asked, models: Models) -> FallbackRequest:
    from ..core.progress import say
    from ..core.values import labelled
    from ..decode.build_heads import NamedHead, head_options, read_subset
    from ..decode.method_spec import MethodSpec
    from ..evaluate.fallback import FallbackRequest
    from ..models.head_io import check_owner, load_head
    from ..vocab.special import SpecialTokens

    assert asked.head is not None
    head = load_head(asked.head, device=models.model.device, dtype=models.model.dtype)
    check_owner(head.artifact, models.owner(asked.drafter), drafter=asked.drafter)
    options = head_options(head.kind, head.artifact.meta, MethodSpec())
    tokenizer = models.tokenizer
    labels = [labelled(str(path))[0] for path in asked.vocabs]
    if len(set(labels)) < len(labels):
        labels = list(map(str, asked.vocabs))
    subsets = [read_subset(path, tokenizer.fingerprint) for path in asked.vocabs]
    special = SpecialTokens.of(tokenizer)
    wanted = sorted({*special.eos, *special.control})
    known = set(models.drafter(asked.drafter)[0].target_ids.tolist())
    if lost := [token for token in wanted if token not in known]:
        say(f"Warning: the drafter's own head lacks the end or control tokens {', '.join(map(str, lost))}.")
    return FallbackRequest(
        NamedHead("head", asked.head, head, options),
        asked.size,
        [(f"vocabulary {label}", subset.ranked) for label, subset in zip(labels, subsets)],
        tuple(token for token in wanted if token in known),
        tokenizer.vocab_size,
        tokenizer.fingerprint,
        NEW_TOKENS,
    )


def _prompts(asked: Asked, models: Models) -> LivePrompts:
    from ..decode.tree import TreeSettings
    from ..evaluate.live_prompts import read_prompts
    from ..train.config import LiveConfig

    assert asked.prompts is not None
    config = LiveConfig(
        prompts=PROMPTS,
        max_new_tokens=NEW_TOKENS,
        max_prompt_tokens=PROMPT_TOKENS,
        total=TreeSettings().total_nodes,
    )
    return read_prompts(asked.prompts, models.tokenizer, config, models.model.config.max_positions)


def _write_dynamic(
    folder: Path, asked: Asked, loaded: Drafter, subset: VocabSubset, owner: HeadOwner
) -> None:
    """The drafter with its own head, the dynamic head bound to it, and the static vocabulary as an artefact."""
    from ..core.artifact import MANIFEST, open_artifact
    from ..models.drafter_io import save_drafter
    from ..models.head_io import drafter_digest, load_head, save_head
    from ..models.target_load import DTYPES
    from ..vocab.subset import save_subset

    assert asked.head is not None
    artifact = open_artifact(asked.drafter) if (asked.drafter / MANIFEST).is_file() else None
    prints = {"target_fingerprint": owner.target, "tokenizer_fingerprint": owner.tokenizer}
    meta = prints | dict(artifact.meta if artifact is not None else {})
    parents = {} if artifact is None else {"drafter": artifact.content_hash}
    config = None if artifact is None else artifact.manifest.get("config")
    save_drafter(folder / "drafter", loaded.to(DTYPES[asked.dtype]), meta, parents=parents, config=config)
    head = load_head(asked.head)
    bound = dataclasses.replace(owner, drafter=drafter_digest(folder / "drafter"))
    known = {"head", *owner.to_meta()}
    facts = {name: value for name, value in head.artifact.meta.items() if name not in known}
    hashes = {"head": head.artifact.content_hash}
    save_head(folder / "head", head.kind, head.module, bound, facts, parents=hashes)
    save_subset(subset, folder / "vocab", parents=hashes)
