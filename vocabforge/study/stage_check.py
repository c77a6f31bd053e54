"""Stage ``check``: the decoder itself on a sample, held against plain decoding and the replay."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, Literal

import torch

from ..core.artifact import open_artifact
from ..core.config import StrictModel
from ..core.console import say
from ..core.errors import ArtifactError
from ..core.files import atomic_write_json
from ..core.records import read_versioned
from ..corpus.regenerate.rows import content_digest
from ..decode.build.spec import MethodSpec
from ..decode.engine import Decoder
from ..decode.proposers.registry import FITTING, Proposer, ProposerParts, make_proposer
from ..decode.request import Generation, Request, SamplingParams
from ..decode.sampling import SeededChance, TokenHistory, target_weights
from ..decode.trees.shapes import TreeShape, chain
from ..evaluate.identity.compare import first_difference
from ..evaluate.identity.divergence import MOST_JUDGED, TOLERANCE
from ..evaluate.identity.rounding import Evidence, OutputPosition, ask_target
from ..models.lean.model import LeanModel
from .config import StudyConfig
from .layout import StudyLayout
from .methods import StudyHeads, StudyMethod, content_of_method, methods
from .replay.replay import cycle_offsets
from .replay.types import Ranks, Replayed
from .replay.walk import accepted, cut_lengths
from .stage_answers import KIND as ANSWERS
from .stage_answers import AnsweringTarget, StudyAnswer, Which, load_answers
from .stage_replay import load_replayed
from .steps import run_step

SCHEMA_VERSION = 1
# Ways of decoding: a chain at temperature 0 and at 1, and EAGLE-2's dynamic tree at temperature 0.
MODES = "chain", "drawn", "tree"
NEAR_TIED, FAULT, NOT_JUDGED = "near-tied", "fault", "not judged"
TEMPERATURES: dict[Which, float] = {"greedy": 0.0, "drawn": 1.0}
_MOST_LOGITS = 2**26  # of one verification; 256 MiB in fp32


@dataclass(frozen=True)
class SampleRequest:
    """One request of the sample: a question's stored answer, and how its tokens are chosen."""

    answer: StudyAnswer
    sampling: SamplingParams


def compare_outputs(
    made: Sequence[Sequence[int]],
    expected: Sequence[Sequence[int]],
    asked: Sequence[SampleRequest],
    model: LeanModel,
    stops: Collection[int],
) -> dict[str, Any]:
    """Outputs beside those that they should be.

    Returns:
        ``outputs``, ``identical`` of them, and ``different``: of the others the set, the question, the place of the
        first difference (from 0), both tokens (None where an output had ended) and a judgement: ``near-tied`` where
        rounding alone decides between the two, else ``fault``.
    """
    different: list[dict[str, Any]] = []
    for one, other, request in zip(made, expected, asked, strict=True):
        at = first_difference(one, other)
        if at is None:
            continue
        wanted, got = (ids[at] if at < len(ids) else None for ids in (other, one))
        place = OutputPosition(request.answer.continuation.prompt, tuple(other[:at]))
        verdict = {"judgement": NOT_JUDGED, "reason": f"only {MOST_JUDGED} are judged"}
        if len(different) < MOST_JUDGED:
            verdict = judge(model, place, (wanted, got), request.sampling, stops)
        different.append(
            {
                "set": request.answer.set,
                "question": request.answer.question,
                "position": at,
                "expected": wanted,
                "got": got,
                **verdict,
            }
        )
    return {"outputs": len(made), "identical": len(made) - len(different), "different": different}


def compare_cycles(
    made: Sequence[Generation], asked: Sequence[SampleRequest], ranks: Sequence[Ranks], shape: TreeShape
) -> dict[str, Any]:
    """Cycles of a fixed shape beside those of the replay that begin at the same tokens.

    Args:
        ranks: of each answer (tokens - 1, levels), as the replay gives them. Outputs that are no beginning of the
            stored answer are other texts, and left out.

    Returns:
        ``outputs`` that were compared, their ``cycles``, ``equal`` of them, ``accepted_length`` of the decoder and
        ``replayed_length`` over the same cycles' starts, and ``different``: set, question, ``start`` (number of the
        token that the cycle began with), ``decoded`` and ``replayed`` tokens.
    """
    compared, cycles, decoded, replayed = 0, 0, 0, 0
    different: list[dict[str, Any]] = []
    for one, request, rows in zip(made, asked, ranks, strict=True):
        count = len(one.token_ids)
        if tuple(one.token_ids) != request.answer.continuation.tokens[:count]:
            continue
        compared += 1
        lengths = accepted(rows[: count - 1], shape) + 1
        start = 0
        for length in cut_lengths(one.accept_lengths, count - 1):
            foretold = min(int(lengths[start]), count - 1 - start)
            if foretold != length:
                where = {"set": request.answer.set, "question": request.answer.question, "start": start}
                different.append({**where, "decoded": length, "replayed": foretold})
            cycles, decoded, replayed = cycles + 1, decoded + length, replayed + foretold
            start += length
    return {
        "outputs": compared,
        "cycles": cycles,
        "equal": cycles - len(different),
        "accepted_length": decoded / cycles if cycles else None,
        "replayed_length": replayed / cycles if cycles else None,
        "different": different,
    }


def accepted_length(made: Sequence[Generation]) -> dict[str, Any]:
    """``accepted_length``: mean tokens that a cycle commits, the last one cut at its output's end, and ``cycles``."""
    lengths = [length for one in made for length in cut_lengths(one.accept_lengths, len(one.token_ids) - 1)]
    return {"accepted_length": sum(lengths) / len(lengths) if lengths else None, "cycles": len(lengths)}


def judge(
    model: LeanModel,
    place: OutputPosition,
    tokens: tuple[int | None, int | None],
    sampling: SamplingParams,
    stops: Collection[int],
) -> dict[str, Any]:
    """Whether the target's own rounding explains that two outputs part.

    Greedy tokens must both lie within ``TOLERANCE`` noises of the largest logit; drawn ones must both be what the
    request's random number chooses when the cumulative distribution moves by as much.

    Args:
        tokens: plain decoding's and the method's; None where an output had ended.
    """
    wanted, got = tokens
    if wanted is None or got is None:
        after = "a stop token" if place.common and place.common[-1] in stops else "the other's end"
        return {"judgement": FAULT, "reason": f"one output goes on behind {after}"}
    with torch.inference_mode():
        evidence = ask_target(model, place, sampling)
    allowed = TOLERANCE * evidence.noise
    found = {"noise": evidence.noise, "gap": float(evidence.scores[wanted] - evidence.scores[got])}
    if not evidence.sound:
        reason = "the target's own passes over the same tokens differ by more than rounding explains"
        return {"judgement": FAULT, "reason": reason, **found}
    if sampling.greedy:
        near = all(
            float(evidence.scores.max() - evidence.scores[token]) <= allowed for token in (wanted, got)
        )
    else:
        near = all(_near_draw(evidence, place, token, sampling, allowed) for token in (wanted, got))
    if near:
        return {"judgement": NEAR_TIED, "reason": f"rounding moves logits by {evidence.noise:.3g}", **found}
    return {"judgement": FAULT, "reason": f"rounding explains {allowed:.3g}", **found}


def _near_draw(
    evidence: Evidence, place: OutputPosition, token: int, sampling: SamplingParams, allowed: float
) -> bool:
    """Whether the request's number for this place falls into the token's part of [0, 1], widened on both sides."""
    history = TokenHistory(place.prompt, len(evidence.scores))
    history.add(place.common)
    weights = target_weights(evidence.scores, sampling, history, ())
    heights = weights.cumsum() / weights.sum()
    low = max(0.0, float(heights[token] - weights[token] / weights.sum()) - allowed)
    high = min(1.0, float(heights[token]) + allowed)
    return not _number_below(low, place, sampling) and _number_below(high, place, sampling)


def _number_below(height: float, place: OutputPosition, sampling: SamplingParams) -> bool:
    """Whether the random number that chooses the token at this place is below a height."""
    chance = SeededChance(sampling.seed)
    for _ in place.common:  # each took one
        chance.happens(1, 1)
    return chance.happens(height, 1)


class CheckSample:
    """Some questions of every set, asked again as their stored answers were.

    Attributes:
        target: the study's.
        asked: the requests, by the kind of answer; the same questions of both kinds, in one order.
    """

    def __init__(self, config: StudyConfig, layout: StudyLayout) -> None:
        self._layout, self._rows, self._tokens = layout, config.answers.rows, config.check.tokens
        self.target = AnsweringTarget(layout.target, config.device, self._rows)
        answers = {which: load_answers(layout, which) for which in TEMPERATURES}
        self._numbers = spread_over_sets([one.set for one in answers["greedy"]], config.check.questions)
        self._offsets = {
            which: cycle_offsets([one.continuation for one in found]) for which, found in answers.items()
        }
        self.asked = {
            which: [
                SampleRequest(found[number], SamplingParams(TEMPERATURES[which], seed=found[number].seed))
                for number in self._numbers
            ]
            for which, found in answers.items()
        }

    @property
    def model(self) -> LeanModel:
        """The target, loaded when first asked for."""
        return self.target.model

    def decode(self, proposer: Proposer | None, which: Which) -> list[Generation]:
        """The outputs, side by side; None decodes plainly."""
        nodes = 1 if proposer is None else proposer.plan.nodes
        rows = _MOST_LOGITS // (nodes * self.model.config.vocab_size)
        asked = self.asked[which]
        longest = max(len(one.answer.continuation.prompt) for one in asked) + self._tokens
        decoder = Decoder(
            self.model,
            proposer,
            context=min(self.model.config.max_positions, longest + 1),
            rows=max(1, min(rows, self._rows, len(asked))),
        )
        stops = self.target.tokenizer.eos_ids
        return decoder.generate_batch(
            [Request(one.answer.continuation.prompt, self._tokens, stops, one.sampling) for one in asked]
        )

    def compare(
        self, made: Sequence[Generation], expected: Sequence[Sequence[int]], which: Which
    ) -> dict[str, Any]:
        """See :func:`compare_outputs`."""
        ids = [one.token_ids for one in made]
        return compare_outputs(ids, expected, self.asked[which], self.model, self.target.tokenizer.eos_ids)

    def plain(self) -> dict[str, Any]:
        """``outputs`` of plain decoding by kind, and ``beside_answers``: how they compare with the stored answers."""
        outputs, beside = {}, {}
        for which, asked in self.asked.items():
            made = self.decode(None, which)
            stored = [one.answer.continuation.tokens[: self._tokens] for one in asked]
            outputs[which] = [one.token_ids for one in made]
            beside[which] = self.compare(made, stored, which)
        return {"outputs": outputs, "beside_answers": beside}

    def ranks(self, replayed: Mapping[str, Replayed], key: str, which: Which, seed: int) -> list[Ranks]:
        """Of what was replayed on all answers of a kind, a method's rows of the sample's: (tokens - 1, levels) each.

        Raises:
            ArtifactError: the replay is of other methods or answers.
        """
        begins = self._offsets[which]
        whole = replayed[key].ranks if key in replayed else None
        if whole is None or len(whole) != begins[-1]:
            raise ArtifactError(
                "the replay is not of these answers and methods",
                got=f"no {key}" if whole is None else f"{len(whole):,} rows of {key}",
                expected=f"{begins[-1]:,} rows of {key}, {which}",
                source=self._layout.replayed(seed),
                remedy="run the stage replay again",
            )
        return [whole[begins[number] : begins[number + 1]] for number in self._numbers]


def spread_over_sets(sets: Sequence[str], count: int) -> list[int]:
    """Places of ``count`` members of every set, evenly spread, set after set."""
    found: list[int] = []
    for name in dict.fromkeys(sets):
        places = [place for place, one in enumerate(sets) if one == name]
        some = min(count, len(places))
        found += [places[number * len(places) // some] for number in range(some)]
    return found


def run(config: StudyConfig, layout: StudyLayout) -> None:
    """Decode a sample with every method of the first seeds and write OUTPUT/check.json.

    It holds ``plain`` (plain decoding beside the stored answers, by kind) and ``methods``: by key, below ``by_seed``,
    for every mode of :data:`MODES`, ``accepted_length``, ``cycles`` and the figures of
    ``compare_outputs``, and for chains ``replay``, those of ``compare_cycles``. ``totals``
    adds them up; ``lossless``: rounding explains all differences; ``as_replayed``: every cycle of a chain is the
    replay's. Finished methods are found again by their content.

    Raises:
        ArtifactError: what another stage makes is missing or damaged.
    """
    result = _measured(config, layout)
    atomic_write_json(layout.checked, result)
    totals = result["totals"]
    say(
        f"{totals['identical']:,} of {totals['outputs']:,} outputs are plain decoding's ({totals['near_tied']:,} part "
        f"where two tokens are near-tied, {totals['faults']:,} otherwise); {totals['equal_cycles']:,} of "
        f"{totals['cycles']:,} cycles are the replay's"
    )


class _CheckFile(StrictModel):
    """``check.json``; see :func:`run`."""

    schema_version: Literal[1]
    dtype: str
    device: str
    settings: dict[str, int]
    questions: list[list[str | int]]
    plain: dict[str, Any]
    methods: dict[str, Any]
    totals: dict[str, int]
    lossless: bool
    as_replayed: bool


def load_checked(layout: StudyLayout) -> dict[str, Any]:
    """check.json; see :func:`run`.

    Raises:
        DataError: the stage has not run, another version wrote the file, or it is damaged.
    """
    found = read_versioned(
        layout.checked,
        _CheckFile,
        SCHEMA_VERSION,
        what="check of the study",
        remedy="run the stage check again",
    )
    return found.model_dump()


def _measured(config: StudyConfig, layout: StudyLayout) -> dict[str, Any]:
    """check.json."""
    folder, own, levels = layout.root / "check", config.check, config.replay.levels
    sample, ways, seeds = (
        CheckSample(config, layout),
        methods(config, layout),
        config.seeds[: config.check.seeds],
    )
    answers = open_artifact(layout.answers, ANSWERS, verify=False).manifest["files"]
    key = {
        "target": sample.target.identity,
        "answers": {name: one["sha256"] for name, one in answers.items() if name.startswith("answers-")},
        "check": own.model_dump(mode="json", exclude={"seeds"}),
    }
    plain = run_step("plain decoding", folder / "plain.json", key, sample.plain)
    found: dict[str, Any] = {
        way.key: {"name": way.name, "setting": way.setting, "by_seed": {}} for way in ways
    }
    for seed in seeds:
        place = layout.seed(seed)
        replay = open_artifact(layout.replayed(seed), verify=False).content_hash
        of_seed = _Seed(config, layout, sample, seed, plain["outputs"])
        for way in ways:
            content = content_digest([content_of_method(place, way), way.kind, levels])
            found[way.key]["by_seed"][str(seed)] = run_step(
                f"seed {seed}: {way.label}",
                folder / f"seed-{seed}" / f"{way.key}.json",
                key | {"method": content, "replay": replay},
                partial(of_seed.measure, way),
            )
    seeded = [made for way in found.values() for made in way["by_seed"].values()]
    totals = sums([figures for made in seeded for figures in made.values()])
    return {
        "schema_version": SCHEMA_VERSION,
        "dtype": sample.target.dtype,
        "device": str(sample.target.device),
        "settings": own.model_dump(mode="json") | {"chain": levels},
        "questions": [[one.answer.set, one.answer.question] for one in sample.asked["greedy"]],
        "plain": plain["beside_answers"],
        "methods": found,
        "totals": totals,
        "lossless": 0 < totals["identical"] + totals["near_tied"] == totals["outputs"],
        "as_replayed": 0 < totals["cycles"] == totals["equal_cycles"],
    }


class _Seed:
    """The methods of one seed; drafters, trained heads and the replay are read once, when first asked for."""

    def __init__(
        self,
        config: StudyConfig,
        layout: StudyLayout,
        sample: CheckSample,
        seed: int,
        plain: Mapping[str, Sequence[Sequence[int]]],
    ) -> None:
        self._config, self._layout, self._sample, self._seed = config, layout, sample, seed
        self._replays, self._plain = cache(partial(load_replayed, layout, seed)), plain

    @cached_property
    def _heads(self) -> StudyHeads:
        return StudyHeads(self._layout.seed(self._seed), self._layout.target, self._sample.model)

    def measure(self, way: StudyMethod) -> dict[str, Any]:
        """Decode the sample in every mode."""
        own, levels, sample = self._config.check, self._config.replay.levels, self._sample
        drafter, head = self._heads.drafter(way.drafter), self._heads.head(way)
        line = MethodSpec(tree="chain", depth=levels - 1)
        tree = MethodSpec(
            tree="dynamic", depth=own.tree_depth, topk=own.tree_topk, total_nodes=own.tree_nodes
        )
        found: dict[str, Any] = {}
        for mode in MODES:
            which: Which = "drawn" if mode == "drawn" else "greedy"
            parts = ProposerParts(sample.model, drafter, head, tree if mode == "tree" else line)
            made = sample.decode(make_proposer(FITTING[drafter.kind][0], parts), which)
            found[mode] = accepted_length(made) | sample.compare(made, self._plain[which], which)
            if mode != "tree":
                ranks = sample.ranks(self._replays(which), way.key, which, self._seed)
                found[mode]["replay"] = compare_cycles(made, sample.asked[which], ranks, chain(levels))
        _warn(way, self._seed, found)
        return found


def _warn(way: StudyMethod, seed: int, found: Mapping[str, Any]) -> None:
    """One line for what must not be."""
    for mode, figures in found.items():
        where = f"{way.label}, seed {seed}, {mode}"
        faults = [one for one in figures["different"] if one["judgement"] != NEAR_TIED]
        if faults:
            one = faults[0]
            say(
                f"Warning: {where}: {len(faults)} outputs are not plain decoding's, first {one['set']} "
                f"{one['question']}, token {one['position'] + 1}: {one['reason']}"
            )
        replay = figures.get("replay")
        if replay and replay["different"]:
            one = replay["different"][0]
            say(
                f"Warning: {where}: {len(replay['different'])} of {replay['cycles']} cycles are not the replay's, "
                f"first {one['set']} {one['question']} from token {one['start'] + 1}: "
                f"{one['decoded']} tokens, not {one['replayed']}"
            )


def sums(each: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Sums over the figures of methods, seeds and modes, as ``totals`` of check.json and the report have them."""
    different = [one["judgement"] for figures in each for one in figures["different"]]
    replays = [figures["replay"] for figures in each if "replay" in figures]
    return {
        "outputs": sum(figures["outputs"] for figures in each),
        "identical": sum(figures["identical"] for figures in each),
        "near_tied": different.count(NEAR_TIED),
        "faults": different.count(FAULT),
        "not_judged": len(different) - different.count(NEAR_TIED) - different.count(FAULT),
        "cycles": sum(one["cycles"] for one in replays),
        "equal_cycles": sum(one["equal"] for one in replays),
    }
