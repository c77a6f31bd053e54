"""What ``vocabforge bench draft-heads`` compares, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import UsageError
from ..decode.build_heads import parse_budget
from ..decode.tree import TreeSettings
from ..models.target import read_target_config
from ..train.config import LiveConfig, TrainConfig


@dataclass(frozen=True)
class HeadBenchOptions:
    """What is compared.

    Attributes:
        seeds: one drafter family each.
        draft_vocabs: R of the static draft vocabularies.
        shortlists: k of the rankers.
        clusters: M of the router.
        budgets: clusters that the router opens, ``K`` or ``LAW:K_MAX:K_MIN``; empty: an eighth, a quarter and
            a half of M.
        prompts: held-out prompts decoded.
        max_new_tokens: tokens decoded a prompt, and of a continuation that VocabTrim counts.
        trim_prompts: training prompts that the target continues for VocabTrim.
        depth, topk, total: shape of the draft tree.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    draft_vocabs: tuple[int, ...] = (128, 256)
    shortlists: tuple[int, ...] = (32, 64, 128)
    clusters: int = 32
    budgets: tuple[str, ...] = ()
    prompts: int = 24
    max_new_tokens: int = 64
    trim_prompts: int = 100
    depth: int = 5
    topk: int = 10
    total: int = 30

    @property
    def tree(self) -> TreeSettings:
        """Shape of the draft tree."""
        return TreeSettings(self.topk, self.depth, self.total)

    def live(self) -> LiveConfig:
        """What reads the prompts takes its limits from here."""
        return LiveConfig(
            prompts=self.prompts,
            max_new_tokens=self.max_new_tokens,
            depth=self.depth,
            topk=self.topk,
            total=self.total,
        )

    def budget_texts(self) -> tuple[str, ...]:
        """``budgets``, or their default."""
        if self.budgets:
            return self.budgets
        return tuple(str(n) for n in sorted({max(1, self.clusters // part) for part in (8, 4, 2)}))


def check(config: TrainConfig, options: HeadBenchOptions) -> None:
    """Refuse, before hours of training, what could not be compared in the end.

    Raises:
        UsageError: see the message.
    """
    drafter, vocab = config.drafter, int(read_target_config(config.target)["vocab_size"])
    wrong = [
        ("drafter.kind", drafter.kind, "an EAGLE drafter", drafter.kind not in ("eagle3", "eagle1")),
        ("drafter.head", drafter.head, "own", drafter.head != "own"),
        (
            "drafter.vocab",
            drafter.vocab,
            "no such key: it is trained over all ids",
            drafter.vocab is not None,
        ),
        ("drafter.init", drafter.init, "no such key", drafter.init is not None),
        ("heads.ranker", None, "a ranker", config.heads.ranker is None),
        ("heads.low_rank", None, "a low-rank head", config.heads.low_rank is None),
    ]
    for key, got, expected, bad in wrong:
        if bad:
            raise UsageError(f"{key} of the recipe does not suit this comparison", got=got, expected=expected)
    for name, numbers in (
        ("--seeds", options.seeds),
        ("--draft-vocab", options.draft_vocabs),
        ("--shortlist", options.shortlists),
        ("--budget", options.budget_texts()),
    ):
        if not numbers or len(set(numbers)) != len(numbers):
            raise UsageError(
                f"{name} needs one or more values, each once",
                got=list(numbers),
                expected="one or more, each once",
                source=name,
            )
    if min(options.seeds) < 0:
        raise UsageError(
            "a seed is not negative", got=min(options.seeds), expected="0 or more", source="--seeds"
        )
    for size in (*options.draft_vocabs, *options.shortlists):
        if not options.topk <= size <= vocab:
            raise UsageError(
                "a draft vocabulary or shortlist does not fit the draft tree and the target",
                got=size,
                expected=f"{options.topk} (the tree's width) to {vocab:,}",
            )
    for text in options.budget_texts():
        if max(parse_budget(text, options.tree.levels)) > options.clusters:
            raise UsageError(
                "a budget is larger than the number of clusters", got=text, expected=options.clusters
            )
