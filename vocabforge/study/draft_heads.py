"""``vocabforge bench draft-heads``: draft heads compared on one drafter family of a user's recipe, over several seeds.

The study at its smallest: target, data and drafter are those of a ``train-drafter`` recipe, and every method decodes
held-out prompts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ..core.config import load_config
from ..core.distributed import world_size
from ..core.errors import UsageError
from ..core.files import atomic_write_json
from ..corpus.regenerate.rows import content_digest
from ..corpus.tokenizer.tokenizer import load_tokenizer
from ..decode.build.heads import parse_budget
from ..decode.proposers.registry import tree_proposer
from ..decode.tree import TreeSettings
from ..evaluate.acceptance.meter import AcceptanceMeter
from ..evaluate.acceptance.prompts import read_prompts
from ..models.device import choose_device
from ..models.heads.registry import HeadOptions
from ..models.lean.model import load_target
from ..models.target.fingerprint import target_fingerprint
from ..models.target.hf import read_target_config
from ..models.target.load import DTYPES
from ..train.config import LiveConfig, OptimConfig, TrainConfig
from ..train.data import corpus_counts, prepare, with_prepared
from ..train.heads.draft_heads import KINDS
from ..train.machine import set_threads
from ..tune.types import setting_of
from .methods import FULL, StudyHeads, StudyMethod, content_of_method, ranker_methods
from .steps import clusters_step, drafter_run, router_run, run_step, subset_step, variant

RESULTS = "results.json"
COLUMNS = ("draft head", "setting", "tokens scored", "accepted length", "share of full")
TREE = TreeSettings(10, 5, 30)  # that every method drafts
ROUTER_LR = 1e-3


@dataclass(frozen=True)
class HeadBenchOptions:
    """What is compared: see the options of ``bench``.

    Attributes:
        budgets: clusters that the router opens, ``K`` or ``LAW:K_MAX:K_MIN``; empty: an eighth, a quarter and
            a half of them.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    draft_vocabs: tuple[int, ...] = (128, 256)
    shortlists: tuple[int, ...] = (32, 64, 128)
    clusters: int = 32
    budgets: tuple[str, ...] = ()
    prompts: int = 24
    max_new_tokens: int = 64

    def budget_texts(self) -> tuple[str, ...]:
        """``budgets``, or their default."""
        defaults = sorted({max(1, self.clusters // part) for part in (8, 4, 2)})
        return self.budgets or tuple(map(str, defaults))


def check(config: TrainConfig, options: HeadBenchOptions) -> None:
    """Refuse, before hours of training, what could not be compared in the end."""
    drafter, heads, vocab = config.drafter, config.heads, int(read_target_config(config.target)["vocab_size"])
    eagle = drafter.kind in ("eagle3", "eagle1") and drafter.head == "own" and drafter.vocab is None
    if not (eagle and heads.ranker and heads.low_rank):
        raise UsageError(
            "the recipe does not suit this comparison",
            got=f"drafter of kind {drafter.kind}, head {drafter.head}; vocab {drafter.vocab}; heads "
            + ", ".join(name for name in KINDS if getattr(heads, name)),
            expected="drafter.kind eagle3 or eagle1, drafter.head own, no drafter.vocab, heads.ranker, heads.low_rank",
        )
    sizes = (*options.draft_vocabs, *options.shortlists)
    opened = [max(parse_budget(text, TREE.levels)) for text in options.budget_texts()]
    for what, given, least, most in (
        ("--draft-vocab or --shortlist", sizes, TREE.topk, vocab),
        ("--budget", opened, 1, options.clusters),
    ):
        if not all(least <= size <= most for size in given):
            raise UsageError(f"{what} does not fit", got=list(given), expected=f"{least} to {most:,}")


def bench_draft_heads(
    recipe: Path, overrides: Sequence[str], options: HeadBenchOptions, output: Path
) -> dict[str, Any]:
    """Train, decode and compare; what an earlier run with the same settings finished is taken over.

    Args:
        recipe: ``train-drafter`` recipe with ``drafter.head: own``, a ranker and a low-rank head.
        output: gets ``results.json`` and a folder a seed.

    Returns:
        ``table`` (rows of :func:`summarise`), ``settings``, ``seeds`` (the results by seed).

    Raises:
        UsageError: a recipe or options that cannot be compared.
    """
    if world_size() > 1:
        got, remedy = f"{world_size()} processes", "start it without a launcher"
        raise UsageError("this benchmark runs in one process", got=got, remedy=remedy)
    config = load_config(TrainConfig, recipe, overrides)
    check(config, options)
    data = with_prepared(config.data)
    wanted: dict[str, Any] = {"cache": data.cache or output / "data"}
    if data.prepared is None:
        wanted["heldout_prompts"] = max(data.heldout_prompts, options.prompts)
    config = config.model_copy(update={"data": data.model_copy(update=wanted)})
    device = choose_device(config.run.device)
    if device.type == "cpu":
        set_threads(config)
    tokenizer = load_tokenizer(config.tokenizer or config.target)
    fingerprint = target_fingerprint(config.target)
    rows = prepare(config.data, tokenizer)
    model = load_target(
        config.target, dtype=DTYPES.get(config.capture.dtype, DTYPES["float32"]), device=device
    )
    live = LiveConfig(
        prompts=options.prompts,
        max_new_tokens=options.max_new_tokens,
        depth=TREE.depth,
        topk=TREE.topk,
        total=TREE.total_nodes,
    )
    prompts = read_prompts(rows.prepared.prompts, tokenizer, live, model.config.max_positions)
    meter = AcceptanceMeter(model, prompts, options.max_new_tokens)
    asked = {
        "target": fingerprint,
        "prompts": content_digest([list(prompt) for prompt in prompts.prompts]),
        "new": options.max_new_tokens,
        "dtype": str(model.dtype),
        "tree": [TREE.depth, TREE.topk, TREE.total_nodes],
    }
    shared = output / "shared"
    counts = corpus_counts(rows.train, tokenizer.vocab_size)
    for size in options.draft_vocabs:
        name = f"fr-{size}"
        subset_step(f"vocabulary {name}", counts, size, tokenizer, config.target, shared / name)
    clusters_step(config.target, tokenizer, options.clusters, shared / "clusters")
    ways = _methods(options, model.config.vocab_size, shared)

    def one_seed(seed: int) -> list[dict[str, Any]]:
        """Train everything of one seed and decode with it."""
        place, digest = output / f"seed-{seed}", rows.digest()
        full = drafter_run(variant(config, place / FULL, seed), digest, fingerprint)
        for size in options.draft_vocabs:
            reduced: dict[str, Any] = {"vocab": shared / f"fr-{size}"}
            without = variant(
                config, place / f"reduced-{size}", seed, drafter=reduced, heads=dict.fromkeys(KINDS)
            )
            drafter_run(without, digest, fingerprint)
        steps, batch = max(1, config.optim.steps // 3), config.optim.batch_size
        router_run(
            variant(config, place / "router", seed),
            full,
            shared / "clusters",
            digest,
            fingerprint,
            optim=OptimConfig(steps=steps, batch_size=batch, lr=ROUTER_LR, clip=1.0),
            levels=TREE.levels,
        )
        heads = StudyHeads(place, config.target, model)

        def decode(way: StudyMethod) -> dict[str, Any]:
            made = meter.measure(tree_proposer(model, heads.drafter(way.drafter), heads.head(way), TREE))
            return {
                "scored": fmean(setting_of(heads.head(way)).at(step) for step in range(TREE.levels)),
                "accepted_length": made.length.value,
                "identical": made.identical,
                "prompts": made.prompts,
            }

        return [
            {"method": way.name, "setting": way.setting}
            | run_step(
                f"seed {seed}: decoding with {way.label}",
                place / f"decode-{way.key}.json",
                {**asked, **content_of_method(place, way)},
                partial(decode, way),
            )
            for way in ways
        ]

    by_seed = {seed: one_seed(seed) for seed in options.seeds}
    result: dict[str, Any] = {
        "settings": asdict(options)
        | {"budgets": options.budget_texts(), "prompts": len(prompts.prompts)}
        | {"recipe": config.model_dump(mode="json"), "target_fingerprint": fingerprint},
        "table": summarise(by_seed),
        "seeds": by_seed,
    }
    result = json.loads(json.dumps(result))
    atomic_write_json(output / RESULTS, result)
    return dict(result)


def _methods(options: HeadBenchOptions, rows: int, shared: Path) -> list[StudyMethod]:
    """Every row of the table, the full head first."""
    sizes = options.draft_vocabs
    found = [StudyMethod(FULL, "full head", f"V = {rows:,}")]
    found += [StudyMethod("reduced", "EAGLE-3 reduced", f"R = {size:,}", f"reduced-{size}") for size in sizes]
    found += [StudyMethod("fr", "FR-Spec", f"R = {size:,}", vocab=shared / f"fr-{size}") for size in sizes]
    found += ranker_methods("ranker", f"{FULL}/heads/ranker", options.shortlists)
    found.append(
        StudyMethod("low-rank", "low-rank", "no exact logits", kind="low-rank", head=f"{FULL}/heads/low-rank")
    )
    for text in options.budget_texts():
        budgets = HeadOptions(budgets=parse_budget(text, TREE.levels))
        setting = f"{text} of {options.clusters}"
        found.append(
            StudyMethod("router", "router", setting, kind="router", head="router/router", options=budgets)
        )
    return found


def summarise(by_seed: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row a method and setting: means and sample deviations over seeds, shares of the same seed's full head."""

    def over_seeds(values: Sequence[float]) -> dict[str, float | None]:
        return {"mean": fmean(values), "deviation": stdev(values) if len(values) > 1 else None}

    full = [found[0]["accepted_length"] for found in by_seed.values()]
    rows = []
    for made in zip(*by_seed.values()):
        lengths = [one["accepted_length"] for one in made]
        rows.append(
            {
                "method": made[0]["method"],
                "setting": made[0]["setting"],
                "scored": fmean(one["scored"] for one in made),
                "accepted_length": over_seeds(lengths),
                "share_of_full": over_seeds([one / whole for one, whole in zip(lengths, full)]),
                "identical": sum(one["identical"] for one in made),
                "outputs": sum(one["prompts"] for one in made),
            }
        )
    return rows


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of :func:`summarise` for people, in the order of :data:`COLUMNS`."""

    def spread(figure: Mapping[str, float | None], form: str) -> str:
        known = [value for value in (figure["mean"], figure["deviation"]) if value is not None]
        return " ± ".join(format(value, form) for value in known)

    figures = spread(row["accepted_length"], ".3f"), spread(row["share_of_full"], ".1%")
    return row["method"], row["setting"], f"{row['scored']:,.0f}", *figures
