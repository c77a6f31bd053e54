"""``vocabforge bench draft-heads``: draft heads compared on one drafter family, over several seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..core.config import load_config
from ..core.console import say
from ..core.distributed import world_size
from ..core.errors import UsageError
from ..core.files import atomic_write, atomic_write_json
from ..corpus.tokenizer import load_tokenizer
from ..models.device import choose_device
from ..models.fingerprint import target_fingerprint
from ..models.lean import load_target
from ..models.target import check_tokenizer_fits
from ..models.target_load import DTYPES
from ..train.config import OptimConfig, TrainConfig
from ..train.data import corpus_counts, prepare, with_prepared
from ..train.draft_heads import KINDS
from ..train.machine import set_threads
from ..train.setup import identity_of
from . import bench_heads_make as making
from .bench_heads_candidates import Candidate, TrainedParts, candidates
from .bench_heads_decode import HeldoutDecoding
from .bench_heads_options import HeadBenchOptions, check
from .bench_heads_steps import PlannedStep, Steps
from .bench_heads_table import markdown, summarise
from .live_prompts import read_prompts

RESULTS, TABLE = "results.json", "table.md"
# Cost of a decoded token in training steps, for the first guess of the time left.
_DRAFTED_TOKEN, _PLAIN_TOKEN = 0.05, 0.006


def bench_draft_heads(
    recipe: Path, overrides: Sequence[str], options: HeadBenchOptions, output: Path
) -> dict[str, Any]:
    """Train, decode and compare; what an earlier run with the same settings finished is taken over.

    Args:
        recipe: ``train-drafter`` recipe with ``drafter.head: own``, a ranker and a low-rank head.
        overrides: ``key=value`` for it.
        output: folder of everything; gets ``results.json``, ``table.md`` and a folder a seed.

    Returns:
        ``table`` (rows of :func:`~vocabforge.evaluate.bench_heads_table.summarise`), ``settings``, ``seeds`` (the
        results by seed), ``vocabularies``.

    Raises:
        UsageError: a recipe or options that cannot be compared.
        MismatchError: the folder holds runs with other settings.
    """
    if world_size() > 1:
        got, remedy = f"{world_size()} processes", "start it without a launcher"
        raise UsageError("this benchmark runs in one process", got=got, remedy=remedy)
    config = load_config(TrainConfig, recipe, overrides)
    check(config, options)
    return _Bench(config, options, output).run()


class _Bench:
    """One comparison: its inputs, loaded once, and its steps."""

    def __init__(self, config: TrainConfig, options: HeadBenchOptions, output: Path) -> None:
        self.options, self.output = options, output
        data = with_prepared(config.data)
        wanted: dict[str, Any] = {"cache": data.cache or output / "data"}
        if data.prepared is None:
            wanted["heldout_prompts"] = max(data.heldout_prompts, options.prompts)
        self.config = config.model_copy(update={"data": data.model_copy(update=wanted)})
        device = choose_device(config.run.device)
        if device.type == "cpu":
            set_threads(config)
        self.tokenizer = load_tokenizer(config.tokenizer or config.target)
        self.data = prepare(self.config.data, self.tokenizer)
        self.fingerprint = target_fingerprint(config.target)
        dtype = DTYPES.get(config.capture.dtype, DTYPES["float32"])
        self.model = load_target(config.target, dtype=dtype, device=device)
        check_tokenizer_fits(
            self.tokenizer.vocab_size,
            self.model.config.vocab_size,
            tokenizer=self.tokenizer.source,
            target=config.target,
        )
        prompts = read_prompts(
            self.data.prepared.prompts, self.tokenizer, options.live(), self.model.config.max_positions
        )
        if len(prompts.prompts) < options.prompts:
            say(
                f"Only {len(prompts.prompts)} held-out prompts are there (data.heldout_documents bounds them)"
            )
        self.decoding = HeldoutDecoding(
            self.model, config.target, prompts, options.max_new_tokens, options.tree
        )
        ids = json.dumps([list(prompt) for prompt in prompts.prompts]).encode()
        self._decoding_key = {
            "target": self.fingerprint,
            "prompts": hashlib.sha256(ids).hexdigest(),
            "new": options.max_new_tokens,
            "dtype": str(dtype),
        }
        self.short = max(1, config.optim.steps // 3)
        self.steps = Steps(self._plan(len(prompts.prompts)))

    def _plan(self, prompts: int) -> list[PlannedStep]:
        """Every step in the order of :meth:`run`."""
        options, steps = self.options, float(self.config.optim.steps)
        drafted, plain = (cost * options.max_new_tokens for cost in (_DRAFTED_TOKEN, _PLAIN_TOKEN))
        shared = [("the target's continuations", plain * options.trim_prompts)]
        for size in options.draft_vocabs:
            shared += [(f"{name} vocabulary of {size}", 0.1) for name in ("FR-Spec", "VocabTrim")]
        shared += [("clusters", 0.1), ("plain decoding", plain * prompts)]
        each = [("full drafter with ranker and low-rank head", steps)]
        each += [(f"drafter with {size} tokens", 0.8 * steps) for size in options.draft_vocabs]
        each += [("ranker alone", 0.6 * self.short), ("router", 0.6 * self.short)]
        plan = [PlannedStep(kind, "", weight) for kind, weight in shared]
        for seed in options.seeds:
            plan += [PlannedStep(kind, f"seed {seed}", weight) for kind, weight in each]
            plan += [PlannedStep("decoding", f"seed {seed}", drafted * prompts)] * self._methods()
        return plan

    def _methods(self) -> int:
        options = self.options
        return 2 + 3 * len(options.draft_vocabs) + 2 * len(options.shortlists) + len(options.budget_texts())

    def run(self) -> dict[str, Any]:
        shared = self._shared()
        by_seed = {seed: self._seed(seed, shared) for seed in self.options.seeds}
        rows = summarise(by_seed)
        result = {
            "settings": {
                **asdict(self.options),
                "budgets": list(self.options.budget_texts()),
                "prompts": len(self.decoding.prompts.prompts),
                "recipe": self.config.model_dump(mode="json"),
                "target_fingerprint": self.fingerprint,
                "data_digest": self.data.digest(),
            },
            "vocabularies": shared["subsets"],
            "table": rows,
            "seeds": by_seed,
        }
        result = json.loads(json.dumps(result))
        atomic_write_json(self.output / RESULTS, result)
        atomic_write(self.output / TABLE, markdown(rows))
        return dict(result)

    def _shared(self) -> dict[str, Any]:
        """What no seed changes: draft vocabularies, clusters, plain outputs."""
        options, place, size = self.options, self.output / "shared", self.tokenizer.vocab_size
        data = {"data": self.data.digest(), "tokenizer": self.tokenizer.fingerprint}
        key = {**self._decoding_key, **data, "count": options.trim_prompts}
        key.pop("prompts")
        trim = self.steps.run(place / "continuations.json", key, self._continuations)
        counts = {
            "fr": corpus_counts(self.data.train, size),
            "trim": np.asarray(trim["counts"], dtype=np.int64),
        }
        subsets = {
            f"{name}-{rows}": self._subset(f"{name}-{rows}", counts[name], rows)
            for rows in options.draft_vocabs
            for name in ("fr", "trim")  # in the order of the plan
        }
        clusters = self.steps.run(
            place / "clusters.json",
            {"target": self.fingerprint, "clusters": options.clusters},
            lambda: making.write_clusters(
                self.config.target, self.tokenizer, options.clusters, place / "clusters"
            ),
            making.still_there,
        )
        plain = self.steps.run(place / "plain.json", self._decoding_key, self.decoding.plain)
        return {"subsets": subsets, "clusters": clusters, "plain": plain["outputs"]}

    def _continuations(self) -> dict[str, Any]:
        options = self.options
        length = min(self.config.data.prompt_tokens, self.model.config.max_positions // 2)
        prompts = making.training_prompts(self.data.train, options.trim_prompts, length)
        most = self.model.config.max_positions - options.max_new_tokens
        prompts = [prompt for prompt in prompts if len(prompt) < most]
        if not prompts:
            raise UsageError(
                "no training document is longer than a prompt, so the target has nothing to continue",
                got=f"prompts of {length} tokens",
                remedy="lower data.prompt_tokens",
            )
        return making.continuation_counts(
            self.model,
            prompts,
            self.tokenizer.eos_ids,
            new=options.max_new_tokens,
            vocab_size=self.tokenizer.vocab_size,
        )

    def _subset(self, name: str, counts: making.Counts, size: int) -> dict[str, Any]:
        path = self.output / "shared" / name
        digest = hashlib.sha256(counts.tobytes()).hexdigest()
        key = {"counts": digest, "size": size, "target": self.fingerprint}

        def make() -> dict[str, Any]:
            forced = making.forced_tokens(self.tokenizer, self.config.target)
            return making.write_subset(counts, size, self.tokenizer.fingerprint, forced, path)

        return self.steps.run(path.with_suffix(".json"), key, make, making.still_there)

    def _seed(self, seed: int, shared: dict[str, Any]) -> list[dict[str, Any]]:
        """Train everything of one seed and decode with it."""
        place = self.output / f"seed-{seed}"
        full = self._train(making.variant(self.config, place / "full", seed))
        without = {"heads": dict.fromkeys(KINDS)}
        reduced = {}
        for size in self.options.draft_vocabs:
            vocab = {"vocab": Path(shared["subsets"][f"fr-{size}"]["path"])}
            run = making.variant(self.config, place / f"reduced-{size}", seed, drafter=vocab, **without)
            reduced[size] = Path(self._train(run)["drafter"])
        drafter = Path(full["drafter"])
        alone = self._train(
            making.variant(
                self.config,
                place / "ranker",
                seed,
                drafter={"init": drafter, "freeze": True},
                heads={key: None for key in KINDS if key != "ranker"},
                optim={"steps": self.short},
            )
        )
        router = self._router(seed, full, shared["clusters"])
        low_rank = self.config.heads.low_rank
        trained = TrainedParts(
            drafter,
            {kind: Path(path) for kind, path in full["heads"].items()},
            reduced,
            Path(alone["heads"]["ranker"]),
            router,
            {name: Path(subset["path"]) for name, subset in shared["subsets"].items()},
            self.model.config.vocab_size,
            None if low_rank is None else low_rank.rank,
        )
        found = candidates(trained, self.options)
        return [self._decode(place, one, shared["plain"]) for one in found]

    def _train(self, config: TrainConfig) -> dict[str, Any]:
        key = identity_of(config, self.data.digest(), self.fingerprint)
        return self.steps.run(
            config.output.with_suffix(".json"),
            key,
            lambda: making.train_drafter(config),
            making.still_there,
        )

    def _router(self, seed: int, full: dict[str, Any], clusters: dict[str, Any]) -> Path:
        config, levels = making.variant(self.config, self.output, seed), self.options.tree.levels
        output = self.output / f"seed-{seed}" / "router"
        optim = OptimConfig(
            steps=self.short, batch_size=config.optim.batch_size, lr=making.ROUTER_LR, clip=1.0
        )
        key = {
            "drafter": full["digest"],
            "clusters": clusters["contents"],
            "data": self.data.digest(),
            "seed": seed,
            "optim": [optim.steps, optim.batch_size, optim.lr],
            "levels": levels,
            "capture": config.capture.dtype,
        }
        made = self.steps.run(
            output.with_suffix(".json"),
            key,
            lambda: making.train_router(
                config,
                Path(full["drafter"]),
                Path(clusters["path"]),
                output,
                optim=optim,
                levels=levels,
            ),
            making.still_there,
        )
        return Path(made["path"])

    def _decode(self, place: Path, candidate: Candidate, plain: list[list[int]]) -> dict[str, Any]:
        tree = [self.options.depth, self.options.topk, self.options.total]
        key = {**self._decoding_key, "tree": tree, **candidate.key()}
        words = f"{candidate.method} {candidate.setting}".lower()
        name = "-".join("".join(c if c.isalnum() else " " for c in words).split())
        figures = self.steps.run(
            place / f"decode-{name}.json",
            key,
            lambda: self.decoding.measure(candidate, plain),
            detail=f"{candidate.method}, {candidate.setting}",
        )
        return {"method": candidate.method, "setting": candidate.setting, **figures}
