"""What a search is made of: models, prompts and heads, loaded once; acceptance and latency of any candidate, joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

from ...core.artifact import open_artifact
from ...core.errors import MismatchError, UsageError
from ...corpus.tokenizer.prompt_format import PromptFormat, resolve_format
from ...corpus.tokenizer.tokenizer import TextTokenizer
from ...decode.build.methods import build_method
from ...decode.build.models import Models
from ...decode.engine import Decoder
from ...decode.proposers.registry import Proposer
from ...evaluate.acceptance.prompts import LivePrompts
from ...evaluate.benchmarks import Benchmark, asked_sha256, load_benchmark, spread
from ...evaluate.run.environment import describe_environment
from ...evaluate.run.prompts import PromptBuilder, system_of
from ...models.heads.registry import DraftHead, base_of
from ..latency.table import LatencyTable
from ..settings import MethodSpace, TuneSettings
from ..types import CycleSetting, HeadSetting, TreeSetting, setting_of
from .acceptance import AcceptanceSource, AcceptanceStore, PromptRow
from .predict import Prediction, predict, predict_plain
from .space import FULL, HeadChoice, TuneCandidate, candidates, cut_vocabs, head_choices, trees_of

OWN = "own"


@dataclass(frozen=True)
class Halves:
    """First turns of a question file.

    Attributes:
        tuning: token ids of those that acceptance is measured on.
        checking: the others, as questions.
        form: how they are rendered.
        left_out: questions that are too long for the target.
    """

    tuning: LivePrompts
    checking: Benchmark
    form: PromptFormat
    left_out: int


def read_halves(
    source: str, tokenizer: TextTokenizer, *, form: str, limit: int | None, room: int, new_tokens: int
) -> Halves:
    """Every other question for tuning, the rest for checking.

    Args:
        source: name of a benchmark, or a question file.
        limit: questions of both halves together, spread over the file.
        room: most positions of a prompt.

    Raises:
        DataError: the file cannot be read.
        UsageError: fewer than four questions that fit.
    """
    whole = load_benchmark(source)
    chosen = resolve_format(tokenizer, form)
    ids = {
        one.question_id: PromptBuilder(tokenizer, chosen, system_of(one, None)).ask(one.turns[0])
        for one in whole.questions
    }
    fitting = [one for one in whole.questions if 0 < len(ids[one.question_id]) <= room]
    kept = fitting if limit is None else spread(fitting, limit)
    if len(kept) < 4:
        raise UsageError(
            "too few questions to measure acceptance on one half and check on the other",
            got=f"{len(kept)} of {len(whole.questions)}, whose prompts have at most {room:,} tokens",
            expected="four or more",
            source=Path(source).name,
            remedy="give more questions, raise --limit, or lower --max-new-tokens",
        )
    # First turns alone, which nothing scores.
    asked = tuple(replace(one, turns=one.turns[:1], reference=None, check=None) for one in kept[1::2])
    checking = replace(
        whole,
        name=f"{whole.name}, every other question",
        sha256=asked_sha256(asked),
        max_new_tokens=new_tokens,
        questions=asked,
        scorer=None,
        published=None,
        of=len(whole.questions),
    )
    tuning = LivePrompts([ids[one.question_id] for one in kept[::2]], tokenizer.eos_ids)
    return Halves(tuning, checking, chosen, len(whole.questions) - len(fitting))


def proposer_of(models: Models, drafter: Path, candidate: TuneCandidate) -> Proposer:
    """The proposer of a candidate, as ``eval --recipe`` builds it; drafter and heads are shared.

    Raises:
        VocabForgeError: a vocabulary or a head of another tokenizer or drafter, or a size beyond it.
    """
    method = build_method(models, candidate.recipe(drafter), candidate.name)
    proposer = cast("Decoder", method.generator).proposer
    assert proposer is not None
    return proposer


class TuneSession:
    """Everything that a run has loaded.

    Args:
        output: its folder.

    Raises:
        VocabForgeError: anything missing, damaged, or not belonging together.
    """

    def __init__(self, output: Path, settings: TuneSettings, space: MethodSpace) -> None:
        self.output, self.settings = output, settings
        self.models = Models(
            settings.target,
            settings.tokenizer,
            device=settings.device,
            dtype=settings.dtype,
            backend=settings.target_backend,
        )
        self.drafter = self.models.drafter(settings.drafter)[0]
        self.trees = [
            tree
            for tree in trees_of(space, self.drafter.max_steps)
            if tree.topk == 1 or not self.models.model.config.recurrent
        ]
        most = max(tree.total for tree in self.trees)
        self.halves: Halves = read_halves(
            settings.prompts,
            self.models.tokenizer,
            form=settings.prompt_format,
            limit=settings.limit,
            room=self.models.model.config.max_positions - settings.max_new_tokens - most,
            new_tokens=settings.max_new_tokens,
        )
        cut = list[tuple[str, Path]]()
        if settings.ranking is not None:
            cut = cut_vocabs(settings.ranking, settings.size, settings.target, output / "vocab")
        base = base_of(self.drafter)
        self.choices = head_choices(space, FULL if len(base.weight) == len(base.embedding) else OWN, cut)
        self._heads: dict[tuple[HeadChoice, int], DraftHead] = {}
        self.source = AcceptanceSource(
            self.models.model,
            self.halves.tuning,
            settings.max_new_tokens,
            AcceptanceStore(output / "acceptance"),
            {**self.hashes, "dtype": settings.dtype},
        )

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Of target, drafter and tokenizer."""
        owner = self.models.owner(self.settings.drafter)
        return {"target": owner.target, "drafter": owner.drafter, "tokenizer": owner.tokenizer}

    @cached_property
    def input_hashes(self) -> dict[str, str]:
        """The same, and of all draft vocabularies and heads, by role."""
        found = dict(self.hashes)
        for choice in self.choices:
            for role, path in (("vocabulary", choice.spec.vocab), ("draft head", choice.spec.head)):
                if path is not None:
                    found[f"{role} {path.name}"] = open_artifact(path, verify=False).content_hash
        return found

    @cached_property
    def environment(self) -> dict[str, Any]:
        return describe_environment(device=str(self.models.model.device), dtype=self.settings.dtype)

    def proposer(self, candidate: TuneCandidate) -> Proposer:
        """See :func:`proposer_of`."""
        return proposer_of(self.models, self.settings.drafter, candidate)

    def head(self, choice: HeadChoice, levels: int | None = None) -> DraftHead:
        """The draft head of a choice, built once.

        Args:
            levels: of its tree: a schedule of budgets is laid over them; None: of the deepest one.
        """
        levels = levels or max(tree.levels for tree in self.trees)
        key = choice, levels if ":" in (choice.spec.budget or "") else 0
        if key not in self._heads:
            chain = TuneCandidate(choice, TreeSetting.chain(levels - 1))
            self._heads[key] = cast("DraftHead", self.proposer(chain).head)
        return self._heads[key]

    def about(self, candidate: TuneCandidate) -> dict[str, Any]:
        """What decides a candidate's drafts, by content."""
        head = candidate.head.spec
        paths = {"vocab": head.vocab, "head": head.head}
        return {
            **{name: path and open_artifact(path, verify=False).content_hash for name, path in paths.items()},
            "shortlist": head.shortlist,
            "budget": head.budget,
            "dynamic": head.dynamic,
            "tree": candidate.tree.model_dump(mode="json"),
        }


class Joined:
    """Acceptance and latency of candidates, as :func:`~vocabforge.tune.search.search.search` asks for them.

    Attributes:
        candidates: heads times trees, without those that the latency table lacks.
        left_out: heads that are not searched, and why.

    Raises:
        MismatchError: no candidate is left.
    """

    def __init__(self, loaded: TuneSession, latency: LatencyTable) -> None:
        self.loaded, self.latency = loaded, latency
        self._abouts: dict[str, dict[str, Any]] = {}
        self.left_out: dict[str, str] = {}
        self.candidates: list[TuneCandidate] = []
        sizes = {choice: loaded.head(choice).size for choice in loaded.choices}
        for one in candidates(sizes, loaded.trees):
            head = setting_of(loaded.head(one.head))
            try:
                for batch in loaded.settings.batch:
                    latency.cycle(CycleSetting(head=head, tree=one.tree, batch=batch, prefix=64))
            except MismatchError as error:
                why = f"the latency table has no {head.label}; {error.remedy}"
                self.left_out.setdefault(one.head.name, why)
            else:
                self.candidates.append(one)
        if not self.candidates:
            raise MismatchError(
                "the latency table has none of the draft heads",
                got="; ".join(f"{name}: {why}" for name, why in self.left_out.items()),
                source=loaded.settings.what_if,
                remedy="run tune --measure-only there with the same draft heads and trees",
            )

    def setting(self, candidate: TuneCandidate) -> HeadSetting:
        """The sizes of its draft head that its time depends on."""
        return setting_of(self.loaded.head(candidate.head, candidate.tree.levels))

    def measure(self, candidate: TuneCandidate, prompts: int) -> list[PromptRow]:
        """Acceptance on the first prompts; decoded only if it is not known."""
        about = self._about(candidate)
        return self.loaded.source.rows(about, partial(self.loaded.proposer, candidate), range(prompts))

    def known(self, candidate: TuneCandidate) -> int:
        """Prompts that its acceptance is known on."""
        return len(self.loaded.source.known(self._about(candidate)))

    def _about(self, candidate: TuneCandidate) -> dict[str, Any]:
        return self._abouts.setdefault(candidate.name, self.loaded.about(candidate))

    def predict(self, candidate: TuneCandidate, rows: Sequence[PromptRow]) -> dict[int, Prediction]:
        """By batch size."""
        head, tree = self.setting(candidate), candidate.tree
        return {
            batch: predict(rows, head, tree, self.latency, batch=batch)
            for batch in self.loaded.settings.batch
        }

    def plain(self) -> dict[int, Prediction]:
        """Plain decoding on all prompts."""
        rows = self.loaded.source.plain()
        return {batch: predict_plain(rows, self.latency, batch=batch) for batch in self.loaded.settings.batch}
