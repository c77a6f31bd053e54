"""``vocabforge bench draft-heads``: draft heads compared on one drafter family of a user's recipe, over several seeds.

The study at its smallest: target, data and drafter are those of a ``train-drafter`` recipe, and every method decodes
held-out prompts.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..core.config import load_config
from ..core.console import ProgressBar, markdown_table, say
from ..core.distributed import world_size
from ..core.errors import UsageError
from ..core.files import atomic_write, atomic_write_json
from ..corpus.prepared.packing import PackedRows
from ..corpus.tokenizer.tokenizer import load_tokenizer
from ..decode.build.heads import parse_budget
from ..decode.engine import Decoder
from ..decode.proposers.registry import tree_proposer
from ..decode.tree import TreeSettings
from ..evaluate.acceptance.meter import AcceptanceMeter, pooled
from ..evaluate.acceptance.prompts import read_prompts
from ..evaluate.benchmarks import spread
from ..evaluate.identity.compare import first_difference
from ..models.device import choose_device
from ..models.heads.exact import answer
from ..models.heads.registry import DraftHead, DraftState, HeadOptions
from ..models.lean.model import load_target
from ..models.target.fingerprint import target_fingerprint
from ..models.target.hf import check_tokenizer_fits, read_target_config
from ..models.target.load import DTYPES
from ..train.config import LiveConfig, OptimConfig, TrainConfig
from ..train.data import corpus_counts, prepare, with_prepared
from ..train.heads.draft_heads import KINDS
from ..train.machine import set_threads
from . import steps as making
from .methods import FULL, StudyHeads, StudyMethod, content_of_method, ranker_methods, static_methods

RESULTS, TABLE = "results.json", "table.md"
COLUMNS = ("draft head", "setting", "tokens scored", "accepted length", "share of full")
ROUTER_LR = 1e-3


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

    def budget_texts(self) -> tuple[str, ...]:
        """``budgets``, or their default."""
        defaults = sorted({max(1, self.clusters // part) for part in (8, 4, 2)})
        return self.budgets or tuple(map(str, defaults))


def check(config: TrainConfig, options: HeadBenchOptions) -> None:
    """Refuse, before hours of training, what could not be compared in the end.

    Raises:
        UsageError: see the message.
    """
    drafter, vocab = config.drafter, int(read_target_config(config.target)["vocab_size"])
    wrong = [
        ("drafter.kind", drafter.kind, "an EAGLE drafter", drafter.kind not in ("eagle3", "eagle1")),
        ("drafter.head", drafter.head, "own", drafter.head != "own"),
        ("drafter.vocab", drafter.vocab, "no such key: all ids", drafter.vocab is not None),
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


def bench_draft_heads(
    recipe: Path, overrides: Sequence[str], options: HeadBenchOptions, output: Path
) -> dict[str, Any]:
    """Train, decode and compare; what an earlier run with the same settings finished is taken over.

    Args:
        recipe: ``train-drafter`` recipe with ``drafter.head: own``, a ranker and a low-rank head.
        overrides: ``key=value`` for it.
        output: folder of everything; gets ``results.json``, ``table.md`` and a folder a seed.

    Returns:
        ``table`` (rows of :func:`summarise`), ``settings``, ``seeds`` (the results by seed), ``vocabularies``.

    Raises:
        UsageError: a recipe or options that cannot be compared.
        MismatchError: the folder holds runs with other settings.
    """
    if world_size() > 1:
        got, remedy = f"{world_size()} processes", "start it without a launcher"
        raise UsageError("this benchmark runs in one process", got=got, remedy=remedy)
    config = load_config(TrainConfig, recipe, overrides)
    check(config, options)
    return _HeadBench(config, options, output).run()


class _HeadBench:
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
        limits = {name: getattr(options, name) for name in LiveConfig.model_fields if hasattr(options, name)}
        prompts = read_prompts(
            self.data.prepared.prompts,
            self.tokenizer,
            LiveConfig(**limits),
            self.model.config.max_positions,
        )
        self.prompts = len(prompts.prompts)
        if self.prompts < options.prompts:
            say(f"Only {self.prompts} held-out prompts are there (data.heldout_documents bounds them)")
        self.meter = AcceptanceMeter(self.model, prompts, options.max_new_tokens)
        ids = json.dumps([list(prompt) for prompt in prompts.prompts]).encode()
        self._decoding_key = {
            "target": self.fingerprint,
            "prompts": hashlib.sha256(ids).hexdigest(),
            "new": options.max_new_tokens,
            "dtype": str(dtype),
        }
        self.short = max(1, config.optim.steps // 3)
        self.methods = self._methods()

    def _methods(self) -> list[StudyMethod]:
        """Every row of the table, the full head first."""
        options, shared = self.options, self.output / "shared"
        low_rank = self.config.heads.low_rank
        rank = None if low_rank is None else low_rank.rank
        found = [StudyMethod(FULL, "full head", f"V = {self.model.config.vocab_size:,}")]
        found += [
            StudyMethod("reduced", "EAGLE-3 reduced", f"R = {size:,}", f"reduced-{size}")
            for size in options.draft_vocabs
        ]
        found += static_methods(options.draft_vocabs, shared)
        for part, run in (("joint", FULL), ("alone", "ranker")):
            found += ranker_methods(f"ranker, {part}", f"{run}/heads/ranker", options.shortlists)
        setting = "default rank" if rank is None else f"rank {rank}"
        found.append(
            StudyMethod("low-rank", "low-rank", setting, kind="low-rank", head="full/heads/low-rank")
        )
        for text in options.budget_texts():
            budgets = HeadOptions(budgets=parse_budget(text, options.tree.levels))
            setting = f"{text} of {options.clusters}"
            found.append(
                StudyMethod("router", "router", setting, kind="router", head="router/router", options=budgets)
            )
        return found

    def run(self) -> dict[str, Any]:
        shared = self._shared()
        by_seed = {seed: self._seed(seed, shared) for seed in self.options.seeds}
        rows = summarise(by_seed)
        result = {
            "settings": {
                **asdict(self.options),
                "budgets": list(self.options.budget_texts()),
                "prompts": self.prompts,
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
        key = {name: value for name, value in self._decoding_key.items() if name != "prompts"}
        key |= {"data": self.data.digest(), "tokenizer": self.tokenizer.fingerprint}
        key["count"] = options.trim_prompts
        trim = making.run_step(
            "the target's continuations", place / "continuations.json", key, self._continuations
        )
        counts = {
            "fr": corpus_counts(self.data.train, size),
            "trim": np.asarray(trim["counts"], dtype=np.int64),
        }
        subsets = {
            f"{name}-{rows}": making.subset_step(
                f"vocabulary {name}-{rows}",
                counts[name],
                rows,
                self.tokenizer,
                self.config.target,
                place / f"{name}-{rows}",
            )
            for rows in options.draft_vocabs
            for name in ("fr", "trim")  # in the order of the plan
        }
        clusters = making.clusters_step(
            self.config.target, self.tokenizer, options.clusters, place / "clusters"
        )
        plain = making.run_step(
            "plain decoding",
            place / "plain.json",
            self._decoding_key,
            lambda: {"outputs": [one.token_ids for one in self.meter.plain()]},
        )
        return {"subsets": subsets, "clusters": clusters, "plain": plain["outputs"]}

    def _continuations(self) -> dict[str, Any]:
        """Counts of the ids that the target itself writes, greedily (VocabTrim)."""
        most, size = self.model.config.max_positions, self.tokenizer.vocab_size
        new, length = self.options.max_new_tokens, min(self.config.data.prompt_tokens, most // 2)
        prompts = training_prompts(self.data.train, self.options.trim_prompts, length)
        prompts = [prompt for prompt in prompts if len(prompt) < most - new]
        if not prompts:
            raise UsageError(
                "no training document is longer than a prompt, so the target has nothing to continue",
                got=f"prompts of {length} tokens",
                remedy="lower data.prompt_tokens",
            )
        decoder = Decoder(self.model, context=min(most, max(map(len, prompts)) + new + 1))
        counts = np.zeros(size, dtype=np.int64)
        with ProgressBar("the target's continuations", len(prompts), "prompts") as bar:
            for prompt in prompts:
                made = decoder.generate(prompt, max_new_tokens=new, stop_ids=self.tokenizer.eos_ids)
                counts += np.bincount([t for t in made.token_ids if t < size], minlength=size)
                bar.update(1)
        return {"counts": counts.tolist(), "tokens": int(counts.sum()), "prompts": len(prompts)}

    def _seed(self, seed: int, shared: dict[str, Any]) -> list[dict[str, Any]]:
        """Train everything of one seed and decode with it."""
        place = self.output / f"seed-{seed}"
        full = self._train(making.variant(self.config, place / "full", seed))
        for size in self.options.draft_vocabs:
            vocab = {"vocab": Path(shared["subsets"][f"fr-{size}"]["path"])}
            without: dict[str, Any] = dict.fromkeys(KINDS)
            self._train(
                making.variant(self.config, place / f"reduced-{size}", seed, drafter=vocab, heads=without)
            )
        drafter = Path(full["drafter"])
        self._train(
            making.variant(
                self.config,
                place / "ranker",
                seed,
                drafter={"init": drafter, "freeze": True},
                heads={key: None for key in KINDS if key != "ranker"},
                optim={"steps": self.short},
            )
        )
        config = making.variant(self.config, place / "router", seed)
        making.router_run(
            config,
            full,
            Path(shared["clusters"]["path"]),
            self.data.digest(),
            self.fingerprint,
            optim=OptimConfig(steps=self.short, batch_size=config.optim.batch_size, lr=ROUTER_LR, clip=1.0),
            levels=self.options.tree.levels,
        )
        heads = StudyHeads(place, self.config.target, self.model)
        return [self._decode(heads, one, shared["plain"]) for one in self.methods]

    def _train(self, config: TrainConfig) -> dict[str, Any]:
        return making.drafter_run(config, self.data.digest(), self.fingerprint)

    def _decode(self, heads: StudyHeads, way: StudyMethod, plain: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Decode every prompt with a method; its figures beside plain decoding's outputs."""
        tree = [self.options.depth, self.options.topk, self.options.total]

        def measure() -> dict[str, Any]:
            head: Any = _CountingHead(heads.head(way))
            proposer = tree_proposer(self.model, heads.drafter(way.drafter), head, self.options.tree)
            made = self.meter.decode(proposer)
            different = [
                [index + 1, place + 1]
                for index, one in enumerate(made)
                if (place := first_difference(one.token_ids, plain[index])) is not None
            ]
            if different:
                say(
                    f"Warning: {way.label}: {len(different)} of {len(made)} outputs are not plain decoding's, first "
                    f"prompt {different[0][0]}, token {different[0][1]}"
                )
            figures = pooled(made) | {"scored": head.scored / max(head.rows, 1), "size": head.size}
            return figures | {"identical": len(made) - len(different), "different": different}

        figures = making.run_step(
            f"{heads.place.name}: decoding with {way.label}",
            heads.place / f"decode-{way.key}.json",
            {**self._decoding_key, "tree": tree, **content_of_method(heads.place, way)},
            measure,
        )
        return {"method": way.name, "setting": way.setting, **figures}


class _CountingHead:
    """A draft head that counts the tokens it scores exactly; everything else is the head's own."""

    def __init__(self, head: DraftHead) -> None:
        self._head = head
        self.rows = self.scored = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head, name)

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        logits, ids = self._head.scores(hidden, k, state)
        self.rows += len(hidden)
        self.scored += int(logits.isfinite().sum())
        return answer(logits, ids, k)


def training_prompts(rows: PackedRows, count: int, length: int) -> list[list[int]]:
    """Beginnings of training documents, evenly spread.

    Args:
        count: at most so many.
        length: tokens of a prompt; in a conversation it is what stands before the first answer.
    """
    found = []
    for row in range(len(rows)):
        document = np.asarray(rows.document[row])
        for number in range(1, int(document.max(initial=0)) + 1):
            places = np.flatnonzero(document == number)
            learnt = np.flatnonzero(np.asarray(rows.loss_mask[row])[places])
            before = int(learnt[0]) if len(learnt) else 0
            size = before if before > 1 else length
            if size < len(places):
                found.append(np.asarray(rows.input_ids[row])[places[:size]].tolist())
    return spread(found, count)


def summarise(by_seed: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row a method and setting.

    Args:
        by_seed: seed -> results in one order, each with ``method``, ``setting``, ``scored``,
            ``accepted_length``, ``identical``, ``prompts``; the full head comes first.

    Returns:
        rows with ``scored`` (mean), ``accepted_length`` and ``share_of_full`` (of the same seed's full head):
        ``mean`` and ``deviation`` (sample standard deviation; None of one seed), and the values by seed.
    """

    def over_seeds(values: Mapping[int, float]) -> dict[str, Any]:
        found = list(values.values())
        deviation = statistics.stdev(found) if len(found) > 1 else None
        return {"mean": statistics.fmean(found), "deviation": deviation, "by_seed": dict(values)}

    rows = []
    for places in zip(*by_seed.values()):
        lengths = {seed: float(one["accepted_length"]) for seed, one in zip(by_seed, places)}
        shares = {seed: length / by_seed[seed][0]["accepted_length"] for seed, length in lengths.items()}
        rows.append(
            {
                "method": places[0]["method"],
                "setting": places[0]["setting"],
                "scored": statistics.fmean(float(one["scored"]) for one in places),
                "accepted_length": over_seeds(lengths),
                "share_of_full": over_seeds(shares),
                "identical": sum(int(one["identical"]) for one in places),
                "outputs": sum(int(one["prompts"]) for one in places),
            }
        )
    return rows


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of :func:`summarise` for people, in the order of :data:`COLUMNS`."""
    length, share = row["accepted_length"], row["share_of_full"]
    return (
        str(row["method"]),
        str(row["setting"]),
        f"{row['scored']:,.0f}",
        f"{length['mean']:.3f}" + ("" if length["deviation"] is None else f" ± {length['deviation']:.3f}"),
        f"{share['mean']:.1%}" + ("" if share["deviation"] is None else f" ± {share['deviation']:.1%}"),
    )


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table for a document."""
    return "\n".join(markdown_table(COLUMNS, map(cells, rows), text=2)) + "\n"
