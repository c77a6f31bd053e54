"""``vocabforge bench draft-heads``: draft heads compared on one drafter family of a user's recipe, over several seeds.

The study at its smallest: target, data and drafter are those of a ``train-drafter`` recipe, and every method decodes
held-out prompts: with trees, or, over a drafter that drafts a block in one pass, with chains of the drafts it learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from ..core.config import load_config
from ..core.errors import UsageError
from ..decode.build.heads import parse_budget
from ..decode.proposers.registry import tree_proposer
from ..decode.tree import TreeSettings
from ..models.drafters.parallel import is_parallel
from ..models.drafters.registry import drafter_class
from ..models.heads.exact import answer
from ..models.heads.registry import DraftHead, DraftState, HeadOptions
from ..models.target.hf import read_target_config
from ..train.config import OptimConfig, TrainConfig
from ..train.data import corpus_counts
from ..train.heads.draft_heads import KINDS
from ..tune.types import setting_of
from ..vocab.subset.subset import load_subset
from .comparison import open_comparison, over_seeds, with_deviation, write_results
from .methods import FULL, StudyHeads, StudyMethod, content_of_method, dynamic, ranker_methods
from .steps import clusters_step, drafter_run, router_run, run_step, subset_step, variant

COLUMNS = ("draft head", "setting", "tokens scored", "accepted length", "share of full")
TREE = TreeSettings(10, 5, 30)  # that every method drafts, but over block drafters
ROUTER_LR = 1e-3
KNOWN = ("eagle3", "eagle1", "dflash", "dspark", "peagle")


@dataclass(frozen=True)
class HeadBenchOptions:
    """What is compared: see the options of ``bench``.

    Attributes:
        budgets: clusters that the router opens, ``K`` or ``SCHEDULE:K_MAX:K_MIN``; empty: an eighth, a quarter and
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


def tree_of(config: TrainConfig) -> TreeSettings:
    """What every method drafts."""
    if is_parallel(drafter_class(config.drafter.kind)):
        return TreeSettings(1, config.ttt.steps - 1, config.ttt.steps + 1)
    return TREE


def check(config: TrainConfig, options: HeadBenchOptions) -> None:
    """Refuse, before hours of training, what could not be compared in the end."""
    drafter, heads, vocab = config.drafter, config.heads, int(read_target_config(config.target)["vocab_size"])
    known = drafter.kind in KNOWN and drafter.head == "own" and drafter.vocab is None
    if not (known and heads.ranker and heads.low_rank):
        raise UsageError(
            "the recipe does not suit this comparison",
            got=f"drafter of kind {drafter.kind}, head {drafter.head}; vocab {drafter.vocab}; heads "
            + ", ".join(name for name in KINDS if getattr(heads, name)),
            expected=f"drafter.kind {', '.join(KNOWN)}; drafter.head own, no drafter.vocab, heads.ranker, "
            "heads.low_rank",
        )
    tree = tree_of(config)
    sizes = (*options.draft_vocabs, *options.shortlists)
    opened = [max(parse_budget(text, tree.levels)) for text in options.budget_texts()]
    for what, given, least, most in (
        ("--draft-vocab or --shortlist", sizes, tree.topk, vocab),
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
    config = load_config(TrainConfig, recipe, overrides)
    check(config, options)
    tree = tree_of(config)
    common = open_comparison(
        config, output, prompts=options.prompts, max_new_tokens=options.max_new_tokens, tree=tree
    )
    config, tokenizer, fingerprint, model = common.config, common.tokenizer, common.fingerprint, common.model
    shared = output / "shared"
    counts = corpus_counts(common.rows.train, tokenizer.vocab_size)
    for size in options.draft_vocabs:
        name = f"fr-{size}"
        subset_step(f"vocabulary {name}", counts, size, tokenizer, config.target, shared / name)
    clusters_step(config.target, tokenizer, options.clusters, shared / "clusters")
    ways = _methods(options, model.config.vocab_size, shared, tree)

    def one_seed(seed: int) -> list[dict[str, Any]]:
        """Train everything of one seed and decode with it."""
        place, digest = output / f"seed-{seed}", common.rows.digest()
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
            levels=tree.levels,
        )
        heads = StudyHeads(place, config.target, model)

        def decode(way: StudyMethod) -> dict[str, Any]:
            drafter, head = heads.drafter(way.drafter), heads.head(way)
            setting, counted = setting_of(head), CountedHead(head)
            union = setting.shared and is_parallel(drafter)  # its size shows in drafting only
            made = common.meter.measure(tree_proposer(model, drafter, counted if union else head, tree))
            scored = counted.sizes if union else [setting.at(step) for step in range(tree.levels)]
            return {
                "scored": fmean(scored),
                "accepted_length": made.length.value,
                "identical": made.identical,
                "prompts": made.prompts,
            }

        return [
            {"method": way.name, "setting": way.setting}
            | run_step(
                f"seed {seed}: decoding with {way.label}",
                place / f"decode-{way.key}.json",
                {**common.asked, **content_of_method(place, way)},
                partial(decode, way),
            )
            for way in ways
        ]

    by_seed = {seed: one_seed(seed) for seed in options.seeds}
    settings = asdict(options) | {
        "budgets": options.budget_texts(),
        "prompts": len(common.meter.prompts.prompts),
        "recipe": config.model_dump(mode="json"),
        "target_fingerprint": fingerprint,
    }
    return write_results(output, settings, summarise(by_seed), by_seed)


class CountedHead:
    """A draft head, and how many tokens the rows of each block shared: ``sizes``."""

    def __init__(self, head: DraftHead) -> None:
        self._head, self.sizes = head, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head, name)

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        logits, ids = self._head.scores(hidden, k, state)
        self.sizes.append(int(logits[0].isfinite().sum()))  # of one request: all its rows have the same
        return logits, ids

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        return answer(*self.scores(hidden, k, state), k)


def _methods(options: HeadBenchOptions, rows: int, shared: Path, tree: TreeSettings) -> list[StudyMethod]:
    sizes, chains = options.draft_vocabs, tree.topk == 1
    found = [StudyMethod(FULL, "full head", f"V = {rows:,}")]
    reduced = "reduced" if chains else "EAGLE-3 reduced"
    found += [StudyMethod("reduced", reduced, f"R = {size:,}", f"reduced-{size}") for size in sizes]
    found += [StudyMethod("fr", "FR-Spec", f"R = {size:,}", vocab=shared / f"fr-{size}") for size in sizes]
    ranker, tail = f"{FULL}/heads/ranker", options.shortlists[0]
    found += ranker_methods("ranker", ranker, options.shortlists)
    if chains:
        found += ranker_methods("ranker, one union", ranker, options.shortlists, rows="shared")
        core = HeadOptions(ranked=tuple(load_subset(shared / f"fr-{sizes[0]}").ranked.tolist()))
        beside = f"core {sizes[0]:,}, {{}} {tail:,}"
        own, union = replace(core, shortlist=tail), replace(core, shortlist=tail, rows="shared")
        found += [
            dynamic("context", "context", beside.format("text"), None, replace(core, context=tail)),
            dynamic("hybrid", "hybrid", beside.format("tail"), ranker, own),
            dynamic("hybrid", "hybrid, one union", beside.format("tail"), ranker, union),
        ]
    found.append(
        StudyMethod("low-rank", "low-rank", "no exact logits", kind="low-rank", head=f"{FULL}/heads/low-rank")
    )
    for text in options.budget_texts():
        budgets = HeadOptions(budgets=parse_budget(text, tree.levels))
        setting = f"{text} of {options.clusters}"
        found.append(
            StudyMethod("router", "router", setting, kind="router", head="router/router", options=budgets)
        )
    return found


def summarise(by_seed: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row a method and setting: means and sample deviations over seeds, shares of the same seed's full head."""

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

    figures = with_deviation(row["accepted_length"], ".3f"), with_deviation(row["share_of_full"], ".1%")
    return row["method"], row["setting"], f"{row['scored']:,.0f}", *figures
