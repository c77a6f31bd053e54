"""A tuning run: load the models once, time the candidates, and write ``tune.json`` and the recipe.

The folder holds all measurements: the same command resumes after an interruption, and another space in the
same folder reuses common measurements.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from .. import __version__
from ..core.artifact import open_artifact
from ..core.console import say
from ..core.errors import DataError, UsageError
from ..core.files import atomic_write_json, check_run_folder
from ..core.hub import hub_name, model_name
from ..core.progress import ProgressBar
from ..core.provenance import command_line
from ..corpus.regenerate.rows import content_digest
from ..decode.build.methods import build_method, build_proposer
from ..decode.build.models import Models
from ..decode.build.recipe import PLAIN, DecodingRecipe, write_recipe
from ..decode.engine import Decoder
from ..decode.interface import Wrap
from ..decode.spec import MethodSpec
from ..evaluate.acceptance.meter import read_prompts
from ..evaluate.run.environment import describe_environment
from ..models.device import choose_device
from ..models.heads.registry import DraftHead, base_of, exact_head
from ..models.target.load import decoding_dtype
from ..ops.backend import library_facts
from .measure import SpeedMeter, measured
from .results import RECIPE, TUNE, TuneResults, plain_rate, recommend, remarks_of
from .search import Candidate, groups_of, search
from .settings import MethodSpace, TuneSettings
from .space import FULL, chain_of, head_choices, methods_of, nodes_of, trees_of

SPEEDS = "speeds"
_OTHERS = 5  # number of methods in the recipe in addition to the recommended one


def tune(
    output: Path, settings: TuneSettings, space: MethodSpace, *, wrap: Wrap | None = None, fresh: bool = False
) -> TuneResults:
    """Search, recommend and write ``recipe.yaml`` and ``tune.json``.

    Args:
        output: folder of the run, created or resumed.

    Raises:
        VocabForgeError: an input is missing or damaged, inputs do not match, or the folder has measurements
            of other models, prompts or settings, or of another machine.
    """
    check_run_folder(output)
    # Temporary files of killed writes are hidden files.
    names = {item.name for item in output.iterdir() if item.name[0] != "."} if output.is_dir() else set()
    if names and not names & {SPEEDS, TUNE}:
        raise UsageError(
            "the folder holds something else",
            got=output,
            expected="an empty folder, or one of an earlier tune",
            remedy="choose another --output",
        )
    session = TuneSession(settings, space, wrap)
    with session.meter(output / SPEEDS, fresh=fresh) as meter:
        candidates, late = session.search(meter)
    results = session.results(candidates, late=late)
    write_recipe(output / RECIPE, session.recipe(results))
    atomic_write_json(output / TUNE, results.model_dump(mode="json"))
    return results


class TuneSession:
    """All models and data of a run.

    Raises:
        VocabForgeError: an input is missing or damaged, or inputs do not match.
    """

    def __init__(self, settings: TuneSettings, space: MethodSpace, wrap: Wrap | None = None) -> None:
        self.settings, self._wrap = settings, wrap
        self.dtype = decoding_dtype(settings.target, settings.dtype, choose_device(settings.device))
        self.models = Models(
            settings.target,
            settings.tokenizer,
            device=settings.device,
            dtype=self.dtype,
            backend=settings.target_backend,
        )
        model = self.models.model
        self.drafter = self.models.drafter(settings.drafter)[0]
        trees = trees_of(space, self.drafter.max_steps, chains_only=model.config.recurrent)
        room = model.config.max_positions - settings.max_new_tokens - max(map(nodes_of, trees.values()))
        self.prompts, self.form, self.left_out = read_prompts(
            settings.prompts,
            self.models.tokenizer,
            form=settings.prompt_format,
            limit=settings.limit,
            room=room,
            least=2,
        )
        base = base_of(self.drafter)
        heads = head_choices(space, FULL if len(base.weight) == len(base.embedding) else "own")
        deepest = chain_of(max(tree.depth or 0 for tree in trees.values()))
        built = {name: self._head(name, head, deepest) for name, head in heads.items()}
        sizes = {name: head.size for name, head in built.items()}
        self.methods = methods_of(settings.drafter.resolve(), heads, sizes, trees)
        owner = self.models.owner(settings.drafter)
        self.inputs = {"target": owner.target, "drafter": owner.drafter, "tokenizer": owner.tokenizer}
        self._hashes: dict[Path | None, str] = {}
        for head in heads.values():
            for role, path in (("vocabulary", head.vocab), ("draft head", head.head)):
                if path is not None:
                    self._hashes[path] = open_artifact(path, verify=False).content_hash
                    self.inputs[f"{role} {path.name}"] = self._hashes[path]
        self.environment = describe_environment(device=str(model.device), dtype=self.dtype)

    def _head(self, name: str, head: MethodSpec, chain: MethodSpec) -> DraftHead:
        spec = head.model_copy(update={**chain.given(), "drafter": self.settings.drafter, "control": "fixed"})
        _, built, _ = build_proposer(self.models, spec, name)
        return exact_head(self.drafter) if built is None else built.head

    def meter(self, folder: Path, *, fresh: bool = False) -> SpeedMeter:
        """Open the measurements of a folder."""
        settings = self.settings
        identity = {
            **{role: self.inputs[role] for role in ("target", "drafter", "tokenizer")},
            "dtype": self.dtype,
            "backend": settings.target_backend,
            "environment": self.environment,
            "ops": library_facts(),
            "vocabforge": __version__,
        }
        new, batch = settings.max_new_tokens, settings.batch
        return SpeedMeter(folder, identity, self.prompts, new, batch, self.decoder, fresh=fresh)

    def decoder(self, spec: MethodSpec | None) -> Decoder:
        """Build the decoder of a method as in ``eval --recipe``; None builds plain decoding.

        Raises:
            VocabForgeError: a vocabulary or head belongs to another tokenizer or drafter, or a size exceeds
                it.
        """
        longest = max(map(len, self.prompts.prompts))
        made = build_method(
            self.models,
            spec or MethodSpec(),
            PLAIN if spec is None else spec.label,
            rows=self.settings.batch,
            context=longest + self.settings.max_new_tokens + 1,
            wrap=self._wrap,
        )
        return cast("Decoder", made.generator)

    def key(self, spec: MethodSpec) -> str:
        """Return a hash of everything that determines a method's drafts, with the contents of its inputs."""
        hashes = {name: self._hashes.get(getattr(spec, name)) for name in ("vocab", "head")}
        return content_digest({**spec.model_dump(mode="json", exclude={"drafter"}), **hashes})

    def search(self, meter: SpeedMeter) -> tuple[list[Candidate], bool]:
        """Search with a progress bar; return the candidates and whether the time limit was reached.

        The first round, which tries every method, takes at most half of the time.
        """
        candidates = [
            Candidate(name=f"{head}+{tree}", head=head, method=spec)
            for (head, tree), spec in self.methods.items()
        ]
        keys = {candidate.name: self.key(candidate.method) for candidate in candidates}

        def measure(some: Sequence[Candidate], groups: int, left: Callable[[], float] | None) -> None:
            if left is not None:
                meter.measure({keys[candidate.name]: candidate.method for candidate in some}, groups, left)
            for candidate in some:
                if rows := meter.rows(keys[candidate.name], groups):
                    candidate.measured = measured(rows)

        late = run_search(
            candidates,
            measure,
            meter,
            sum(len(meter.rows(key)) for key in keys.values()),
            self.settings.seconds,
        )
        return candidates, late

    def results(self, candidates: list[Candidate], *, late: bool) -> TuneResults:
        """Return the content of ``tune.json``."""
        settings = self.settings
        return TuneResults(
            version=__version__,
            command=command_line(),
            target=model_name(settings.target),
            drafter=hub_name(settings.drafter),
            environment=self.environment,
            inputs=self.inputs,
            settings={
                "new_tokens": settings.max_new_tokens,
                "batch": settings.batch,
                "prompts": settings.prompts,
                "prompt_format": self.form,
                "dtype": self.dtype,
                "budget": None if math.isinf(settings.seconds) else settings.seconds,
            },
            prompts={"measured": len(self.prompts.prompts), "left_out": self.left_out},
            plain=plain_rate(candidates),
            candidates=candidates,
            recommendation=recommend(candidates),
            remarks=remarks_of(candidates, self.left_out, late=late),
        )

    def recipe(self, results: TuneResults) -> DecodingRecipe:
        """Return the recommended method first, then those that it was compared with."""
        best, settings = results.recommendation, self.settings
        names = [] if best.method == PLAIN else [best.method]
        names += best.others[:_OTHERS]
        if not names:
            raise DataError("nothing was measured", remedy="give more --seconds")
        methods = {candidate.name: candidate.method for candidate in results.candidates}
        return DecodingRecipe(
            target=settings.target.resolve(),
            tokenizer=None if settings.tokenizer is None else settings.tokenizer.resolve(),
            dtype=cast(Any, self.dtype),
            target_backend=settings.target_backend,
            methods={name: _absolute(methods[name]) for name in names},
        )


def run_search(
    candidates: Sequence[Candidate], measure: Any, meter: SpeedMeter, known: int, seconds: float
) -> bool:
    """Search within a time limit; return whether it was reached. ``known``: groups measured before."""
    began, limit = time.monotonic(), None if math.isinf(seconds) else seconds
    within = (
        "" if limit is None else f", for at most {limit:.0f} s: --seconds buys more prompts for more methods"
    )
    say(f"{len(candidates)} methods, each on up to {len(meter.prompts.prompts)} prompts{within}")

    def left(number: int) -> float:
        return began + seconds * (0.5 if number == 1 else 1.0) - time.monotonic()

    total = max(1, groups_of(len(candidates), meter.groups) - known) * meter.batch
    with ProgressBar("Measuring", total, "answers", limit_s=limit) as bar:
        meter.on_answers = bar.update
        search(candidates, measure, meter.groups, left=left, tell=lambda what: bar.update(note=what))
    return any(candidate.state == "not reached" for candidate in candidates) or left(2) <= 0


def _absolute(spec: MethodSpec) -> MethodSpec:
    """Return the method with absolute paths, so that the recipe works from any folder."""
    paths = {name: getattr(spec, name) for name in ("drafter", "vocab", "head")}
    return spec.model_copy(update={name: path.resolve() for name, path in paths.items() if path is not None})
