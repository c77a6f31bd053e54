"""Stage ``drafters``: everything that is trained for one seed of the study."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import DataError
from ..core.files import atomic_write
from ..core.lock import only_writer
from ..corpus.chat.conversation import parse_conversation
from ..corpus.chat.render import render_with_mask
from ..corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from ..models.device import choose_device
from ..models.target.fingerprint import target_fingerprint
from ..train.config import (
    DataConfig,
    DrafterConfig,
    HeadsConfig,
    LiveConfig,
    LowRankConfig,
    OptimConfig,
    RunConfig,
    TrainConfig,
    TTTConfig,
)
from ..train.data import TrainData, corpus_counts, prepare
from ..train.heads.router import BestTokens
from ..train.setup import CALIBRATION_ROWS
from ..train.trainer import Trainer
from . import steps as making
from .candidates import CandidateSampler
from .config import DraftersConfig, PartConfig, StudyConfig
from .copying import start_copying
from .layout import StudyLayout
from .methods import FULL, RANKERS, REDUCED, RUNS, router_folder
from .stage_answers import spread_by_source
from .stage_vocab import heldout_files
from .target_loss import passes_in_bf16

FOLDER = "prepared"
TRAIN, HELDOUT = "train.jsonl", "heldout.jsonl"
_SAMPLE = 256  # conversations whose tokens are counted, to know how many a share of the rows takes
_HELDOUT = 8  # conversations of each held-out source: few, as held-out figures are exact over all ids


def mix(config: StudyConfig, layout: StudyLayout, tokenizer: TextTokenizer) -> dict[str, dict[str, int]]:
    """Write the conversations that drafters learn from, and a few held-out ones, below ``layout.root``.

    Of both kinds so many are taken that ``drafters.corpus_share`` of the tokens are texts of the sources, evenly over
    each source, and no more than the full drafter's steps read once.

    Returns:
        ``conversations`` and ``tokens`` (estimated) of each kind.

    Raises:
        DataError: a row is malformed, or a file of another stage is missing.
    """
    own, share = config.drafters, config.drafters.corpus_share
    lines = {"texts": _lines(layout.train_texts) if share > 0 else []}
    lines["own"] = _lines(layout.own_texts) if share < 1 else []
    each = {name: _mean_tokens(found, tokenizer) if found else 0.0 for name, found in lines.items()}
    have = {name: each[name] * len(found) for name, found in lines.items()}
    tokens = dict(zip(lines, shared_tokens(have["texts"], have["own"], own)))
    chosen = {name: _spread(found, tokens[name] / (each[name] or 1.0)) for name, found in lines.items()}
    folder = layout.root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / TRAIN, "".join(line + "\n" for line in interleaved(chosen["texts"], chosen["own"])))
    sources = [_spread(_lines(path), _HELDOUT) for path in heldout_files(config, layout).values()]
    atomic_write(
        folder / HELDOUT, "".join(line + "\n" for row in zip_longest(*sources) for line in row if line)
    )
    return {
        "conversations": {name: len(found) for name, found in chosen.items()},
        "tokens": {name: round(each[name] * len(found)) for name, found in chosen.items()},
    }


def packed(config: StudyConfig, layout: StudyLayout, tokenizer: TextTokenizer) -> TrainData:
    """The mixed conversations as packed rows, made once and found again by their content.

    Raises:
        DataError: nothing to learn from.
        ConfigError: too few conversations to hold some out, where no source is held out.
    """
    folder = layout.root / FOLDER
    heldout = (folder / HELDOUT,) if (folder / HELDOUT).stat().st_size else ()
    there = len(_lines(folder / TRAIN))
    data = DataConfig(
        train=(folder / TRAIN,),
        heldout=heldout,
        heldout_documents=min(_HELDOUT, max(1, there // _HELDOUT)),  # where no source is held out
        sequence_length=config.drafters.sequence_length,
        overlong="split",  # a long prompt must not take its answer with it
    )
    return prepare(data, tokenizer, cache=folder)


def shared_tokens(texts: float, own: float, config: DraftersConfig) -> tuple[float, float]:
    """Tokens to take of the texts and of the target's own answers.

    Args:
        texts, own: tokens that there are.

    Returns:
        what has the wanted share, as much as the full drafter's steps read once, less where one of both runs out.
    """
    share, total = config.corpus_share, float(_needed(config))
    if share > 0:
        total = min(total, texts / share)
    if share < 1:
        total = min(total, own / (1 - share))
    return total * share, total * (1 - share)


def interleaved(*parts: Sequence[str]) -> Iterator[str]:
    """All lines, each part's in its order and spread evenly over the whole."""
    placed = [
        ((number + 0.5) / len(part), which, line)
        for which, part in enumerate(parts)
        for number, line in enumerate(part)
    ]
    yield from (line for _, _, line in sorted(placed, key=lambda one: one[:2]))


def _needed(config: DraftersConfig) -> int:
    """Tokens that the full drafter's steps read."""
    return config.full.steps * config.full.batch_size * config.sequence_length


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise DataError(
            "a file of the study is missing", source=path, remedy="run the stages before this one"
        )
    return [line for line in path.read_text("utf-8").split("\n") if line.strip()]


def _spread(lines: Sequence[str], count: float) -> list[str]:
    """About ``count`` of the lines, evenly over the rows of each source; one at least."""
    if not lines:
        return []
    sources = [str(json.loads(line).get("source", "")) for line in lines]
    return [lines[place] for place in spread_by_source(sources, max(1, round(count)))]


def _mean_tokens(lines: Sequence[str], tokenizer: TextTokenizer) -> float:
    """Tokens of a conversation, from a sample; 0 where none of it can be rendered."""
    sizes = []
    for line in _spread(lines, _SAMPLE):
        with contextlib.suppress(DataError):  # counted and named when the rows are packed
            sizes.append(len(render_with_mask(tokenizer, parse_conversation(json.loads(line)) or [])[0]))
    return sum(sizes) / max(len(sizes), 1)


# Held-out tokens that a finished run is looked at on: exact over all ids, and the replay is what tells.
_EVAL_TOKENS = 256


def run(config: StudyConfig, layout: StudyLayout, seed: int) -> None:
    """Train everything of one seed; what an earlier run finished with the same inputs is taken over.

    Below ``layout.seed(seed)`` a run folder each with a JSON beside it that names what decided it: ``full`` (drafter,
    joint rankers, low-rank head), ``reduced``, ``rankers`` (alone), and ``router-M``. A killed training resumes at its
    last checkpoint.

    Raises:
        DataError: what another stage makes is missing.
    """
    Training(config, layout, seed).run()


class TrainingInputs(NamedTuple):
    """What all trainings of a seed share: settings, rows, and the target's fingerprint."""

    base: TrainConfig
    data: TrainData
    target: str


class Training:
    """The trainings of one seed, in order."""

    def __init__(self, config: StudyConfig, layout: StudyLayout, seed: int) -> None:
        self.config, self.layout, self.seed = config, layout, seed
        self.place = layout.seed(seed)
        self._best: BestTokens = {}

    def run(self) -> None:
        """Train, or take over, every part."""
        own, inputs = self.config.drafters, self.inputs()
        full = self.full(inputs)
        vocab = {"head": "own", "vocab": self.layout.subset("fr", own.reduced_size)}
        self._train(inputs, own.reduced, REDUCED, drafter=vocab)
        frozen = {"init": Path(full["drafter"]), "freeze": True}
        self._train(inputs, own.alone, RUNS["alone"], drafter=frozen, heads=self._rankers())
        for count in self.config.methods.clusters:
            self._router(inputs, full, count)

    def inputs(self) -> TrainingInputs:
        config, layout = self.config, self.layout
        tokenizer = load_tokenizer(layout.target)
        with only_writer(layout.root / FOLDER, wait=True):  # other seeds may be trained beside
            mix(config, layout, tokenizer)
            data = packed(config, layout, tokenizer)
        base = base_settings(config, layout, data.prepared.artifact.path)
        return TrainingInputs(base, data, target_fingerprint(layout.target))

    def full(self, inputs: TrainingInputs) -> dict[str, Any]:
        """The full drafter with its heads."""
        heads: dict[str, Any] = {**self._rankers(), "low_rank": self._low_rank(self.config.methods.ranks[0])}
        # A head of its own, as the reduced drafter has: what is compared is the vocabulary, not what is trained.
        return self._train(inputs, self.config.drafters.full, FULL, drafter={"head": "own"}, heads=heads)

    def _rankers(self) -> dict[str, LowRankConfig]:
        """Keys of ``heads`` for a ranker of each rank."""
        return {key: self._low_rank(part) for key, part in zip(RANKERS, self.config.methods.ranks)}

    def _low_rank(self, part: int) -> LowRankConfig:
        return LowRankConfig(rank=self.config.target.hidden_size // part)

    def _train(self, inputs: TrainingInputs, part: PartConfig, name: str, **sections: Any) -> dict[str, Any]:
        """One run of ``train-drafter``."""
        settings = part_settings(inputs.base, part, self.place / name, self.seed, **sections)
        options = self._options(settings)
        data = inputs.data.digest()
        return making.drafter_run(settings, data, inputs.target, options, self._prepare, replace=True)

    def _options(self, settings: TrainConfig) -> dict[str, Any]:
        """The study's own settings of a run, as its identity names them."""
        own = self.config.drafters
        fresh = settings.drafter.init is None
        return {"drafter.copying": own.copying and fresh, "memory.candidates": own.candidates}

    def _prepare(self, trainer: Trainer) -> None:
        """Let a fresh drafter start as copying, and estimate the vocabulary losses on candidates."""
        options, config = self._options(trainer.config), trainer.config
        trainer.identity.update(options)
        if options["drafter.copying"]:
            batch = trainer.capture("train", list(range(min(len(trainer.data.train), CALIBRATION_ROWS))))
            start_copying(trainer.drafter, batch, batch.input_ids.shape[1])
        if (size := options["memory.candidates"]) is not None:
            rows = len(trainer.target.head_weight)
            sampler = CandidateSampler(corpus_counts(trainer.data.train, rows), size, rows, config.run.seed)
            trainer.sample = lambda step, ids: sampler.draw(step, ids, trainer.device)

    def _router(self, inputs: TrainingInputs, full: Mapping[str, Any], count: int) -> None:
        own = self.config.drafters
        settings = part_settings(inputs.base, own.router, self.place / router_folder(count), self.seed)
        making.router_run(
            settings,
            full,
            self.layout.clusters(count),
            inputs.data.digest(),
            inputs.target,
            optim=settings.optim.model_copy(update={"clip": 1.0}),
            levels=own.steps,
            best=self._best,
            replace=True,
        )


def base_settings(config: StudyConfig, layout: StudyLayout, prepared: Path) -> TrainConfig:
    """What all runs of ``train-drafter`` have in common.

    Args:
        prepared: artefact of the packed rows.
    """
    own = config.drafters
    return TrainConfig(
        target=layout.target,
        output=layout.root,
        data=DataConfig(prepared=prepared),
        drafter=DrafterConfig(aux_layers=list(own.aux_layers), intermediate_size=own.intermediate_size),
        heads=HeadsConfig(),
        ttt=TTTConfig(steps=own.steps),
        optim=OptimConfig(steps=own.full.steps),
        run=RunConfig(
            device=config.device,
            mixed_precision="bf16"
            if passes_in_bf16(own.mixed_precision, choose_device(config.device))
            else "no",
            threads=config.threads,
            eval_rows=max(1, _EVAL_TOKENS // own.sequence_length),
            keep=1,
            trackers=(),
            live=LiveConfig(prompts=0),
        ),
    )


def part_settings(
    base: TrainConfig, part: PartConfig, output: Path, seed: int, **sections: dict[str, Any]
) -> TrainConfig:
    """A run of its own: looked at once, when it ends, and kept three times."""
    run = {"eval_every": part.steps, "checkpoint_every": -(-part.steps // 3)}
    optim = {"steps": part.steps, "batch_size": part.batch_size, "lr": part.lr, "fused": part.fused}
    return making.variant(
        base, output, seed, optim=optim, ttt={"warmup_fraction": part.warmup}, run=run, **sections
    )
