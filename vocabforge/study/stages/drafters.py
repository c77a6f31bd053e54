"""Stage ``drafters``: everything that is trained for one seed of the study."""

from __future__ import annotations

import random
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ...core.files import atomic_write
from ...corpus.tokenizer.tokenizer import load_tokenizer
from ...evaluate.benchmarks import spread
from ...models.target.fingerprint import target_fingerprint
from ...train.config import (
    DataConfig,
    DrafterConfig,
    LiveConfig,
    LowRankConfig,
    OptimConfig,
    RunConfig,
    TrainConfig,
    TTTConfig,
)
from ...train.data import TrainData, corpus_counts, prepare
from ...train.heads.router import BestTokens
from ...train.setup import CALIBRATION_ROWS
from ...train.trainer import Trainer
from .. import steps as making
from ..candidates import CandidateSampler
from ..config import PartConfig, StudyConfig, StudyLayout
from ..copying import start_copying
from ..methods import FULL, RANKERS, REDUCED, RUNS, router_folder

FOLDER = "prepared"
TRAIN, HELDOUT = "train.jsonl", "heldout.jsonl"
_HELDOUT = 8  # conversations of each held-out source: few, as held-out figures are exact over all ids
_EVAL_TOKENS = 256  # held-out tokens that a finished run is evaluated on; the replay is what tells


def run(config: StudyConfig, layout: StudyLayout, seed: int) -> None:
    """Train everything of one seed; what an earlier run finished with the same inputs is taken over.

    Below ``layout.seed(seed)`` a run folder each: ``full`` (drafter, joint rankers, low-rank head), ``reduced``,
    ``rankers`` (alone), and ``router-M``. A killed training resumes at its last checkpoint.
    """
    own, place = config.drafters, layout.seed(seed)
    data = packed(config, layout)
    base = base_settings(config, layout, data.prepared.artifact.path)
    digest, target = data.digest(), target_fingerprint(layout.target)
    ranks = [LowRankConfig(rank=config.target.hidden_size // part) for part in config.methods.ranks]
    rankers = dict(zip(RANKERS, ranks))

    def train(part: PartConfig, name: str, **sections: Any) -> dict[str, Any]:
        settings = part_settings(base, part, place / name, seed, **sections)
        options = _options(config, settings)
        return making.drafter_run(
            settings, digest, target, options, lambda trainer: _prepare(trainer, options)
        )

    # A head of its own, as the reduced drafter has: what is compared is the vocabulary, not what is trained.
    full = train(own.full, FULL, drafter={"head": "own"}, heads={**rankers, "low_rank": ranks[0]})
    train(own.reduced, REDUCED, drafter={"head": "own", "vocab": layout.subset("fr", own.reduced_size)})
    train(
        own.alone, RUNS["alone"], drafter={"init": Path(full["drafter"]), "freeze": True}, heads={**rankers}
    )
    best: BestTokens = {}
    for count in config.methods.clusters:
        settings = part_settings(base, own.router, place / router_folder(count), seed)
        making.router_run(
            settings,
            full,
            layout.clusters(count),
            digest,
            target,
            optim=settings.optim.model_copy(update={"clip": 1.0}),
            levels=own.steps,
            best=best,
        )


def packed(config: StudyConfig, layout: StudyLayout) -> TrainData:
    """The conversations that drafters learn from as packed rows, made once and found again by their content.

    Of the larger kind so many are left out that ``drafters.corpus_share`` are texts of the sources.
    """
    share, folder = config.drafters.corpus_share, layout.root / FOLDER
    texts = _lines(layout.train_texts) if share > 0 else []
    own = _lines(layout.own_texts) if share < 1 else []
    if texts and own:
        total = min(len(texts) / share, len(own) / (1 - share))
        texts, own = spread(texts, round(total * share)), spread(own, round(total * (1 - share)))
    lines = [*texts, *own]
    random.Random(0).shuffle(lines)
    atomic_write(folder / TRAIN, "\n".join([*lines, ""]))
    sources = [spread(_lines(layout.heldout_texts(one.name)), _HELDOUT) for one in config.data.held_out]
    heldout = [line for row in zip_longest(*sources) for line in row if line]
    atomic_write(folder / HELDOUT, "\n".join([*heldout, ""]))
    data = DataConfig(
        train=(folder / TRAIN,),
        heldout=(folder / HELDOUT,) if heldout else (),
        heldout_documents=min(_HELDOUT, max(1, len(lines) // _HELDOUT)),  # if no source is held out
        sequence_length=config.drafters.sequence_length,
        overlong="split",  # a long prompt must not take its answer with it
    )
    return prepare(data, load_tokenizer(layout.target), cache=folder)


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text("utf-8").split("\n") if line.strip()]


def _options(config: StudyConfig, settings: TrainConfig) -> dict[str, Any]:
    """The study's own settings of a run, as its identity names them."""
    own = config.drafters
    fresh = settings.drafter.init is None
    return {"drafter.copying": own.copying and fresh, "memory.candidates": own.candidates}


def _prepare(trainer: Trainer, options: dict[str, Any]) -> None:
    """Let a fresh drafter start as copying, and estimate the vocabulary losses on candidates."""
    trainer.identity.update(options)
    if options["drafter.copying"]:
        batch = trainer.capture("train", list(range(min(len(trainer.data.train), CALIBRATION_ROWS))))
        start_copying(trainer.drafter, batch, batch.input_ids.shape[1])
    if (size := options["memory.candidates"]) is not None:
        rows = len(trainer.target.head_weight)
        counts = corpus_counts(trainer.data.train, rows)
        sampler = CandidateSampler(counts, size, rows, trainer.config.run.seed)
        trainer.sample = lambda step, ids: sampler.draw(step, ids, trainer.device)


def base_settings(config: StudyConfig, layout: StudyLayout, prepared: Path) -> TrainConfig:
    """What all runs of ``train-drafter`` have in common; ``prepared`` is the artefact of the packed rows."""
    own = config.drafters
    return TrainConfig(
        target=layout.target,
        output=layout.root,
        data=DataConfig(prepared=prepared),
        drafter=DrafterConfig(aux_layers=list(own.aux_layers), intermediate_size=own.intermediate_size),
        ttt=TTTConfig(steps=own.steps),
        optim=OptimConfig(steps=own.full.steps, fused=True),
        run=RunConfig(
            device=config.device,
            mixed_precision=config.mixed_precision,
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
    """A separate run: evaluated once, when it ends, with three checkpoints."""
    run = {"eval_every": part.steps, "checkpoint_every": -(-part.steps // 3)}
    optim = {"steps": part.steps, "batch_size": part.batch_size, "lr": part.lr}
    return making.variant(
        base, output, seed, optim=optim, ttt={"warmup_fraction": part.warmup}, run=run, **sections
    )
