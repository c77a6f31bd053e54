"""Stage ``check``: the decoder itself on a sample, held against plain decoding and the replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ...core.artifact import open_artifact
from ...core.console import say
from ...core.files import atomic_write
from ...corpus.regenerate.rows import content_digest
from ...decode.build.spec import MethodSpec
from ...decode.engine import Decoder
from ...decode.proposers.registry import FITTING, Proposer, ProposerParts, make_proposer
from ...decode.request import Generation, SamplingParams
from ...decode.sampling import SeededChance, TokenHistory, target_weights
from ...decode.trees.shapes import TreeShape, chain
from ...evaluate.benchmarks import spread
from ...evaluate.identity.compare import first_difference
from ...evaluate.identity.divergence import TOLERANCE
from ...evaluate.identity.rounding import Evidence, OutputPosition, ask_target
from ...models.lean.model import LeanModel
from ..config import StudyConfig, StudyLayout
from ..methods import StudyHeads, StudyMethod, content_of_method, methods
from ..replay.replay import cycle_offsets
from ..replay.stage import load_replayed
from ..replay.types import Ranks, Replayed
from ..replay.walk import accepted, cut_lengths
from ..report.results import Checked, Decoded
from ..steps import run_step
from .answers import KIND as ANSWERS
from .answers import AnsweringTarget, StudyAnswer, Which, load_answers

_FORMAT = 3
TREE = "dynamic tree, greedy"  # EAGLE-2's
# Ways of decoding -> the stored answers that they should give.
MODES: dict[str, Which] = {"chain, greedy": "greedy", "chain, temperature 1": "drawn", TREE: "greedy"}
NEAR_TIED, FAULT = "near-tied", "fault"
_MOST_LOGITS = 2**26  # of one verification; 256 MiB in fp32


def run(config: StudyConfig, layout: StudyLayout) -> None:
    """Decode a sample with every method of the first seeds and write OUTPUT/check.json, a :class:`.Checked`.

    What each method did is in ``check/seed-S/METHOD.json``, by the names of :data:`MODES`.
    """
    own, levels, ways = config.check, config.replay.levels, methods(config, layout)
    sample = _Sample(config, layout)
    answers = open_artifact(layout.answers, ANSWERS, verify=False).manifest["files"]
    key = {
        "format": _FORMAT,
        "target": sample.target.identity,
        "answers": {name: one["sha256"] for name, one in answers.items() if name.startswith("answers-")},
        "check": own.model_dump(mode="json", exclude={"seeds"}),
    }
    found: dict[str, list[dict[str, Any]]] = {way.key: [] for way in ways}
    for seed in config.seeds[: own.seeds]:
        place = layout.seed(seed)
        replayed = open_artifact(layout.replayed(seed), verify=False).content_hash
        heads = cache(partial(sample.heads, place))
        ranks = cache(partial(load_replayed, layout, seed))
        for way in ways:
            content = content_digest([content_of_method(place, way), way.kind, levels])
            made = run_step(
                f"seed {seed}: {way.label}",
                layout.root / "check" / f"seed-{seed}" / f"{way.key}.json",
                key | {"method": content, "replay": replayed},
                partial(sample.measure, way, heads, ranks),
            )
            found[way.key].append(made)
    lengths: dict[str, dict[str, float]] = {name: {} for name in found}
    for name, seeds in found.items():
        for mode in MODES:
            known = [made[mode]["accepted_length"] for made in seeds]
            if None not in known:
                lengths[name][mode] = fmean(known)
    result = Checked(
        modes=[decoded(mode, [made[mode] for seeds in found.values() for made in seeds]) for mode in MODES],
        lengths=lengths,
        questions=len(sample.asked["greedy"]),
        where=f"{sample.target.device}, {sample.target.dtype}",
        settings=own.model_dump(),
    )
    atomic_write(layout.checked, result.model_dump_json(indent=1) + "\n")
    for one in result.modes:
        cycles = f"; {one.equal_cycles:,} of {one.cycles:,} cycles are the replay's" if one.cycles else ""
        say(
            f"{one.mode}: {one.identical:,} of {one.outputs:,} outputs are plain decoding's, {one.near_tied:,} part at "
            f"a near tie, {one.faults:,} are faults{cycles}"
        )


class _Sample:
    """Some questions of every set, asked again as their stored answers were; ``asked`` has these by kind."""

    def __init__(self, config: StudyConfig, layout: StudyLayout) -> None:
        self._config, self._layout = config, layout
        self.target = AnsweringTarget(layout.target, config.device, config.answers.rows)
        self._answers = {which: load_answers(layout, which) for which in dict.fromkeys(MODES.values())}
        places: dict[str, list[int]] = {}
        for place, one in enumerate(self._answers["greedy"]):
            places.setdefault(one.set, []).append(place)
        self._numbers = [place for some in places.values() for place in spread(some, config.check.questions)]
        self.asked = {
            which: [found[number] for number in self._numbers] for which, found in self._answers.items()
        }

    def heads(self, place: Path) -> StudyHeads:
        return StudyHeads(place, self._layout.target, self.target.model)

    def measure(
        self,
        way: StudyMethod,
        heads: Callable[[], StudyHeads],
        replayed: Callable[[Which], Mapping[str, Replayed]],
    ) -> dict[str, Any]:
        """Decode the sample with a method in every mode."""
        own, levels = self._config.check, self._config.replay.levels
        drafter, head = heads().drafter(way.drafter), heads().head(way)
        line = MethodSpec(tree="chain", depth=levels - 1)
        tree = MethodSpec(
            tree="dynamic", depth=own.tree_depth, topk=own.tree_topk, total_nodes=own.tree_nodes
        )
        found: dict[str, Any] = {}
        for mode, which in MODES.items():
            parts = ProposerParts(self.target.model, drafter, head, tree if mode == TREE else line)
            made = self._decode(make_proposer(FITTING[drafter.kind][0], parts), which)
            found[mode] = compare_outputs(made, self.asked[which], own.tokens, self.target.model, which)
            if mode != TREE:
                ranks = self._ranks(replayed(which), way.key, which)
                found[mode]["replay"] = compare_cycles(made, self.asked[which], ranks, chain(levels))
        return found

    def _decode(self, proposer: Proposer, which: Which) -> list[Generation]:
        asked, model, new = self.asked[which], self.target.model, self._config.check.tokens
        rows = _MOST_LOGITS // (proposer.plan.nodes * model.config.vocab_size)
        longest = max(len(one.continuation.prompt) for one in asked) + new
        decoder = Decoder(
            model,
            proposer,
            context=min(model.config.max_positions, longest + 1),
            rows=max(1, min(rows, self._config.answers.rows, len(asked))),
        )
        return decoder.generate_batch(
            [self.target.request(one.continuation.prompt, new, sampling_of(one, which)) for one in asked]
        )

    def _ranks(self, replayed: Mapping[str, Replayed], key: str, which: Which) -> list[Ranks]:
        """Of what was replayed on all answers, a method's rows of the sample's: (tokens - 1, levels) each."""
        begins = cycle_offsets([one.continuation for one in self._answers[which]])
        return [replayed[key].ranks[begins[number] : begins[number + 1]] for number in self._numbers]


def sampling_of(answer: StudyAnswer, which: Which) -> SamplingParams:
    """How the tokens of a stored answer were chosen."""
    return SamplingParams(0.0 if which == "greedy" else 1.0, seed=answer.seed)


def compare_outputs(
    made: Sequence[Generation], asked: Sequence[StudyAnswer], tokens: int, model: LeanModel, which: Which
) -> dict[str, Any]:
    """Outputs beside the first ``tokens`` of the stored answers, which plain decoding wrote.

    Returns:
        ``accepted_length``: mean tokens that a cycle commits, the last one cut at its output's end. ``outputs``,
        ``identical`` of them, and ``different``: of the others the set, the question, the position of the first
        difference (from 0), both tokens (None: the output had ended) and a judgement (see :func:`judge`).
    """
    different: list[dict[str, Any]] = []
    for one, answer in zip(made, asked, strict=True):
        wanted, got = answer.continuation.tokens[:tokens], one.token_ids
        at = first_difference(wanted, got)
        if at is None:
            continue
        pair = tuple(ids[at] if at < len(ids) else None for ids in (wanted, got))
        place = OutputPosition(answer.continuation.prompt, wanted[:at])
        judgement = judge(model, place, pair, sampling_of(answer, which))
        where = {"set": answer.set, "question": answer.question, "position": at}
        different.append(where | {"expected": pair[0], "got": pair[1], "judgement": judgement})
    lengths = [n for one in made for n in cut_lengths(one.accept_lengths, len(one.token_ids) - 1)]
    return {
        "accepted_length": sum(lengths) / len(lengths) if lengths else None,
        "outputs": len(made),
        "identical": len(made) - len(different),
        "different": different,
    }


def compare_cycles(
    made: Sequence[Generation], asked: Sequence[StudyAnswer], ranks: Sequence[Ranks], shape: TreeShape
) -> dict[str, Any]:
    """Cycles of a fixed shape beside those of the replay that begin at the same tokens.

    Args:
        ranks: of each answer (tokens - 1, levels), as the replay gives them. Outputs that are no beginning of the
            stored answer are other texts, and left out.

    Returns:
        ``outputs`` that were compared, their ``cycles``, ``equal`` of them, and ``different``: set, question,
        ``start`` (number of the token that the cycle began with), ``decoded`` and ``replayed`` tokens.
    """
    compared = cycles = 0
    different: list[dict[str, Any]] = []
    for one, answer, rows in zip(made, asked, ranks, strict=True):
        count = len(one.token_ids)
        if tuple(one.token_ids) != answer.continuation.tokens[:count]:
            continue
        compared += 1
        lengths = accepted(rows[: count - 1], shape) + 1
        start = 0
        for length in cut_lengths(one.accept_lengths, count - 1):
            foretold = min(int(lengths[start]), count - 1 - start)
            if foretold != length:
                where = {"set": answer.set, "question": answer.question, "start": start}
                different.append({**where, "decoded": length, "replayed": foretold})
            cycles, start = cycles + 1, start + length
    equal = cycles - len(different)
    return {"outputs": compared, "cycles": cycles, "equal": equal, "different": different}


def judge(
    model: LeanModel, place: OutputPosition, tokens: tuple[int | None, ...], sampling: SamplingParams
) -> str:
    """Whether the target's own rounding explains that two outputs part.

    Greedy tokens must both lie within ``TOLERANCE`` noises of the largest logit; drawn ones must both be what the
    request's random number chooses when the cumulative distribution moves by as much.

    Args:
        tokens: of both outputs; None: an output had ended.
    """
    known = [token for token in tokens if token is not None]
    if len(known) < len(tokens):
        return FAULT
    with torch.inference_mode():
        evidence = ask_target(model, place, sampling)
    allowed = TOLERANCE * evidence.noise
    if sampling.greedy:
        near = all(float(evidence.scores.max() - evidence.scores[token]) <= allowed for token in known)
    else:
        near = all(_near_draw(evidence, place, token, sampling, allowed) for token in known)
    return NEAR_TIED if evidence.sound and near else FAULT


def _near_draw(
    evidence: Evidence, place: OutputPosition, token: int, sampling: SamplingParams, allowed: float
) -> bool:
    """Whether the request's number for this position falls into the token's part of [0, 1], widened on both sides."""
    history = TokenHistory(place.prompt, len(evidence.scores))
    history.add(place.common)
    weights = target_weights(evidence.scores, sampling, history, ())
    heights = weights.cumsum() / weights.sum()

    def below(height: float) -> bool:
        chance = SeededChance(sampling.seed)
        for _ in place.common:  # each took one
            chance.happens(1, 1)
        return chance.happens(height, 1)

    low = max(0.0, float(heights[token] - weights[token] / weights.sum()) - allowed)
    return not below(low) and below(min(1.0, float(heights[token]) + allowed))


def decoded(mode: str, each: Sequence[Mapping[str, Any]]) -> Decoded:
    """Sums over the figures of methods and seeds."""
    judged = Counter(one["judgement"] for figures in each for one in figures["different"])
    replays = [figures["replay"] for figures in each if "replay" in figures]
    return Decoded(
        mode=mode,
        outputs=sum(figures["outputs"] for figures in each),
        identical=sum(figures["identical"] for figures in each),
        near_tied=judged[NEAR_TIED],
        faults=judged[FAULT],
        cycles=sum(one["cycles"] for one in replays),
        equal_cycles=sum(one["equal"] for one in replays),
    )
