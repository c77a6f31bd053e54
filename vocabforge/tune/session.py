"""Models, prompts and heads of a search, loaded once, and the meter that times candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from .. import __version__
from ..core.artifact import open_artifact
from ..core.errors import UsageError
from ..corpus.tokenizer.prompt_format import PromptFormat, resolve_format
from ..corpus.tokenizer.tokenizer import TextTokenizer
from ..decode.build.methods import build_method, build_proposer
from ..decode.build.models import Models
from ..decode.build.recipe import PLAIN
from ..decode.engine import Decoder
from ..decode.interface import Wrap
from ..decode.spec import MethodSpec
from ..evaluate.acceptance.meter import LivePrompts
from ..evaluate.benchmarks import load_benchmark, spread
from ..evaluate.run.environment import describe_environment
from ..evaluate.run.prompts import PromptBuilder, system_of
from ..models.heads.registry import DraftHead, base_of, exact_head
from ..ops.backend import library_facts
from .measure import Measured, SpeedMeter, TurnStore, measured
from .settings import MethodSpace, TuneSettings
from .space import FULL, HeadChoice, TreeSetting, TuneCandidate, candidates, head_choices, trees_of

OWN = "own"


def read_prompts(
    source: str, tokenizer: TextTokenizer, *, form: str, limit: int, room: int
) -> tuple[LivePrompts, PromptFormat, int]:
    """Return the first turns of a question file, their format, and how many were too long.

    Args:
        source: name of a benchmark, or a question file.
        limit: maximum number of questions, evenly spread over the file.
        room: maximum number of positions of a prompt.

    Raises:
        DataError: the file cannot be read.
        UsageError: fewer than two questions fit.
    """
    whole, chosen = load_benchmark(source), resolve_format(tokenizer, form)
    ids = [
        PromptBuilder(tokenizer, chosen, system_of(one, None)).ask(one.turns[0]) for one in whole.questions
    ]
    fitting = [prompt for prompt in ids if 0 < len(prompt) <= room]
    if len(fitting) < 2:
        raise UsageError(
            "too few questions to compare speeds",
            got=f"{len(fitting)} of {len(ids)}, whose prompts have at most {room:,} tokens",
            expected="two or more",
            source=Path(source).name,
            remedy="give more questions, or lower --max-new-tokens",
        )
    return LivePrompts(spread(fitting, limit), tokenizer.eos_ids), chosen, len(ids) - len(fitting)


class TuneSession:
    """All models and data of a run.

    Args:
        output: folder of the run.
        wrap: accelerates passes, as in ``eval``.

    Raises:
        VocabForgeError: an input is missing or damaged, or inputs do not match.
    """

    def __init__(
        self, output: Path, settings: TuneSettings, space: MethodSpace, wrap: Wrap | None = None
    ) -> None:
        self.output, self.settings, self._wrap = output, settings, wrap
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
        room = self.models.model.config.max_positions - settings.max_new_tokens - most
        prompts, self.form, self.left_out = read_prompts(
            settings.prompts,
            self.models.tokenizer,
            form=settings.prompt_format,
            limit=settings.limit,
            room=room,
        )
        base = base_of(self.drafter)
        self.choices = head_choices(space, FULL if len(base.weight) == len(base.embedding) else OWN)
        self._heads: dict[HeadChoice, DraftHead] = {}
        self.candidates = candidates({choice: self.head(choice).size for choice in self.choices}, self.trees)
        about = {
            **self.hashes,
            "dtype": settings.dtype,
            "backend": settings.target_backend,
            "environment": self.environment,
            "ops": library_facts(),
            "vocabforge": __version__,
        }
        self._context = max(map(len, prompts.prompts)) + settings.max_new_tokens + 1
        self.meter = SpeedMeter(
            prompts, settings.max_new_tokens, self.decoder, TurnStore(output / "speeds"), about
        )

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Hashes of target, drafter and tokenizer."""
        owner = self.models.owner(self.settings.drafter)
        return {"target": owner.target, "drafter": owner.drafter, "tokenizer": owner.tokenizer}

    @cached_property
    def input_hashes(self) -> dict[str, str]:
        """Hashes of all inputs, by role: ``hashes``, draft vocabularies and draft heads."""
        found = dict(self.hashes)
        for choice in self.choices:
            for role, path in (("vocabulary", choice.spec.vocab), ("draft head", choice.spec.head)):
                if path is not None:
                    found[f"{role} {path.name}"] = open_artifact(path, verify=False).content_hash
        return found

    @cached_property
    def environment(self) -> dict[str, Any]:
        return describe_environment(device=str(self.models.model.device), dtype=self.settings.dtype)

    def decoder(self, candidate: TuneCandidate | None, batch: int) -> Decoder:
        """Build the decoder of a candidate as in ``eval --recipe``; None builds plain decoding.

        Raises:
            VocabForgeError: a vocabulary or head belongs to another tokenizer or drafter, or a size exceeds
                it.
        """
        spec = MethodSpec() if candidate is None else candidate.recipe(self.settings.drafter)
        name = PLAIN if candidate is None else candidate.name
        made = build_method(self.models, spec, name, rows=batch, context=self._context, wrap=self._wrap)
        return cast("Decoder", made.generator)

    def head(self, choice: HeadChoice) -> DraftHead:
        """Return the draft head of a choice, built once for the deepest tree."""
        if choice not in self._heads:
            levels = max(tree.levels for tree in self.trees)
            chain = TuneCandidate(choice, TreeSetting.chain(levels - 1))
            _, built, _ = build_proposer(self.models, chain.recipe(self.settings.drafter), chain.name)
            self._heads[choice] = exact_head(self.drafter) if built is None else built.head
        return self._heads[choice]

    def about(self, candidate: TuneCandidate) -> dict[str, Any]:
        """Return everything that determines a candidate's drafts, by content hash."""
        head = candidate.head.spec
        paths = {"vocab": head.vocab, "head": head.head}
        return {
            **{name: path and open_artifact(path, verify=False).content_hash for name, path in paths.items()},
            "shortlist": head.shortlist,
            "budget": head.budget,
            "dynamic": head.dynamic,
            "tree": asdict(candidate.tree),
        }

    def known(self, candidate: TuneCandidate) -> int:
        """Return the number of answers that a candidate was timed on."""
        return sum(int(name.partition(":")[0]) for name in self.meter.known(self.about(candidate)))

    def groups(self, prompts: int) -> int:
        """See :class:`~.search.Meter`."""
        return sum(self.meter.groups(prompts, batch) for batch in self.settings.batch)

    def measure(
        self, some: Sequence[TuneCandidate], prompts: int, left: Callable[[], float] | None
    ) -> list[Mapping[int, Measured]]:
        """Time candidates on the first prompts; see :class:`~.search.Meter`."""
        pairs = [(one, self.about(one)) for one in some]
        if left is not None:
            for batch in self.settings.batch:
                self.meter.measure(pairs, prompts, batch, left)
        found: list[Mapping[int, Measured]] = []
        for _, about in pairs:
            rows = {batch: self.meter.rows(about, prompts, batch) for batch in self.settings.batch}
            whole = all(rows.values())  # candidates must be measured at every batch size
            found.append({batch: measured(some, batch) for batch, some in rows.items()} if whole else {})
        return found
