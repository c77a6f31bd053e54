"""Stage ``drafters``: everything that is trained for one seed of the study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from ..core.lock import only_writer
from ..corpus.tokenizer import load_tokenizer
from ..evaluate import bench_heads_make as making
from ..evaluate.bench_heads_steps import PlannedStep, Steps
from ..models.device import choose_device
from ..models.fingerprint import target_fingerprint
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
from ..train.data import TrainData, corpus_counts
from ..train.draft_heads import head_name
from ..train.router_train import BestTokens
from ..train.setup import CALIBRATION_ROWS, identity_of
from ..train.trainer import Trainer
from .candidates import CandidateSampler
from .config import PartConfig, StudyConfig
from .copying import start_copying
from .drafter_data import FOLDER, mix, mix_fits, mix_key, packed
from .layout import Layout
from .methods import FULL, LOW_RANK, PARTS, REDUCED, ranker_folder, router_folder
from .run_folders import begin, publish, tidy
from .target_loss import passes_in_bf16

JOINT, ALONE = PARTS
# Keys of `train-drafter`'s heads, in the order of methods.ranks: a run trains two rankers side by side.
RANKERS = "ranker", "small_ranker"
RUNS = "runs"  # of what becomes a single head
# Held-out tokens that a finished run is looked at on: exact over all ids, and the replay is what tells.
_EVAL_TOKENS = 256


def run(config: StudyConfig, layout: Layout, seed: int) -> None:
    """Train everything of one seed; what an earlier run finished with the same inputs is taken over.

    Below ``layout.seed(seed)``: the run folders ``full`` and ``reduced`` with their ``drafter``; rankers (joint and
    alone), the low-rank head and routers in the folders that ``study.methods`` names; a JSON beside each run with what
    decided it. A killed training goes on at its last checkpoint.

    Raises:
        UsageError: ranks that cannot be trained.
        DataError: what another stage makes is missing.
    """
    Training(config, layout, seed).run()


@dataclass(frozen=True)
class Inputs:
    """What all trainings of a seed share: settings, rows, and the target's fingerprint."""

    base: TrainConfig
    data: TrainData
    target: str


class Training:
    """The trainings of one seed, in order."""

    def __init__(self, config: StudyConfig, layout: Layout, seed: int) -> None:
        check_ranks(config)
        self.config, self.layout, self.seed = config, layout, seed
        self.place = layout.seed(seed)
        self._steps = Steps(self._plan())
        self._best: BestTokens = {}

    def _plan(self) -> list[PlannedStep]:
        """Every step in the order of :meth:`run`; weights are rough shares of time."""
        own, where = self.config.drafters, f"seed {self.seed}"
        named = (
            ("full drafter with rankers and a low-rank head", own.full, 1.0),
            (f"drafter over {own.reduced_size:,} tokens", own.reduced, 0.6),
            ("rankers alone", own.alone, 0.8),
        )
        plan = [PlannedStep("conversations to learn from", "", 2.0)]
        plan += [PlannedStep(name, where, cost * _work(part)) for name, part, cost in named]
        return plan + [
            PlannedStep(f"router over {count:,} clusters", where, 4.0 * _work(own.router))
            for count in self.config.methods.clusters
        ]

    def run(self) -> None:
        """Train, or take over, every part."""
        inputs = self.inputs()
        full = self.full(inputs)
        self.reduced(inputs)
        self.alone(inputs, Path(full["drafter"]))
        for count in self.config.methods.clusters:
            self.router(inputs, full, count)

    def inputs(self) -> Inputs:
        config, layout = self.config, self.layout
        tokenizer = load_tokenizer(layout.target)
        with only_writer(layout.root / FOLDER, wait=True):  # other seeds may be trained beside
            self._steps.run(
                layout.root / FOLDER / "mixed.json",
                mix_key(config, layout, tokenizer),
                lambda: mix(config, layout, tokenizer),
                mix_fits,
            )
            data = packed(config, layout, tokenizer)
        base = base_settings(config, layout, data.prepared.artifact.path)
        return Inputs(base, data, target_fingerprint(layout.target))

    def full(self, inputs: Inputs) -> dict[str, Any]:
        parts = self.config.methods.ranks
        heads: dict[str, Any] = {**self._rankers(), "low_rank": self._low_rank(parts[0])}
        wanted = self._ranker_folders(JOINT) | {head_name("low_rank"): LOW_RANK}
        # A head of its own, as the reduced drafter has: what is compared is the vocabulary, not what is trained.
        own = {"head": "own"}
        settings = self._part(inputs, self.config.drafters.full, self.place / FULL, drafter=own, heads=heads)
        return self._train(inputs, settings, wanted)

    def reduced(self, inputs: Inputs) -> None:
        own = self.config.drafters
        subset = self.layout.subset("fr", own.reduced_size)
        vocab = {"head": "own", "vocab": subset}
        self._train(inputs, self._part(inputs, own.reduced, self.place / REDUCED, drafter=vocab), {})

    def alone(self, inputs: Inputs, drafter: Path) -> None:
        settings = self._part(
            inputs,
            self.config.drafters.alone,
            self.place / RUNS / "rankers",
            drafter={"init": drafter, "freeze": True},
            heads=self._rankers(),
        )
        self._train(inputs, settings, self._ranker_folders(ALONE))

    def _part(
        self, inputs: Inputs, part: PartConfig, output: Path, **sections: dict[str, Any]
    ) -> TrainConfig:
        return part_settings(inputs.base, part, output, self.seed, **sections)

    def _rankers(self) -> dict[str, LowRankConfig]:
        """Keys of ``heads`` for a ranker of each rank."""
        return {key: self._low_rank(part) for key, part in zip(RANKERS, self.config.methods.ranks)}

    def _low_rank(self, part: int) -> LowRankConfig:
        return LowRankConfig(rank=self.config.target.hidden_size // part)

    def _ranker_folders(self, training: str) -> dict[str, str]:
        """Where each ranker of a run belongs, by its folder in the run."""
        ranks = zip(RANKERS, self.config.methods.ranks)
        return {head_name(key): ranker_folder(part, training) for key, part in ranks}

    def _train(self, inputs: Inputs, settings: TrainConfig, wanted: Mapping[str, str]) -> dict[str, Any]:
        """One run of ``train-drafter``; its heads go where the study looks for them.

        Args:
            wanted: folder below the seed's, by folder of the run's heads.
        """
        output = settings.output
        key = {
            **identity_of(settings, inputs.data.digest(), inputs.target),
            **self._options(settings),
            "passes": settings.run.mixed_precision,
            "states": settings.capture.dtype,
            "heads go to": dict(wanted),
        }

        def make() -> dict[str, Any]:
            begin(output, key)
            made = making.train_drafter(settings, self._prepare)
            heads = {name: self.place / folder for name, folder in wanted.items()}
            for name, place in heads.items():
                publish(Path(made["heads"][name]), place)
            return {
                **made,
                "heads": {name: str(place) for name, place in heads.items()},
                "contents": making.content_hashes(list(heads.values())),
            }

        made = self._steps.run(output.with_suffix(".json"), key, make, making.still_there)
        tidy(output)
        return made

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

    def router(self, inputs: Inputs, full: Mapping[str, Any], count: int) -> None:
        own, clusters = self.config.drafters, self.layout.clusters(count)
        output, place = self.place / RUNS / router_folder(count), self.place / router_folder(count)
        settings = self._part(inputs, own.router, output)
        optim = settings.optim.model_copy(update={"clip": 1.0})
        key = {
            "drafter": full["digest"],
            "clusters": making.content_hashes([clusters]),
            "data": inputs.data.digest(),
            "target": inputs.target,
            "seed": self.seed,
            "optim": optim.model_dump(mode="json"),
            "levels": own.steps,
            "states": settings.capture.dtype,
        }

        def make() -> dict[str, Any]:
            begin(output, key)
            made = making.train_router(
                settings,
                Path(full["drafter"]),
                clusters,
                output,
                optim=optim,
                levels=own.steps,
                budgets=(max(1, round(max(self.config.methods.budgets) * count)),),
                best=self._best,
            )
            publish(Path(made["path"]), place)
            return {"path": str(place), "contents": making.content_hashes([place])}

        self._steps.run(output.with_suffix(".json"), key, make, making.still_there)
        tidy(output)


def check_ranks(config: StudyConfig) -> None:
    """Refuse ranks that cannot be trained, before anything is.

    Raises:
        UsageError: more than two, one twice, or one below 1.
    """
    ranks, width = config.methods.ranks, config.target.hidden_size
    if len(ranks) > len(RANKERS) or len(set(ranks)) != len(ranks) or max(ranks) > width:
        raise UsageError(
            "these ranks cannot be trained",
            got=f"methods.ranks {list(ranks)}",
            expected=f"one or {len(RANKERS)} different parts of the hidden size {width:,}",
        )


def base_settings(config: StudyConfig, layout: Layout, prepared: Path) -> TrainConfig:
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


def _work(part: PartConfig) -> float:
    return float(part.steps * part.batch_size)
