"""A sample of a study's questions, and the decoder on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import ArtifactError
from ..decode.engine import Decoder
from ..decode.proposers import Proposer
from ..decode.request import Generation, Request, SamplingParams
from ..evaluate.replay import cycle_offsets
from ..evaluate.replay_types import Ranks, Replayed
from ..models.lean import LeanModel
from .answering import AnsweringTarget
from .answers import Which, load_answers
from .check_compare import Asked, compare_outputs
from .config import StudyConfig
from .layout import Layout

TEMPERATURES: dict[Which, float] = {"greedy": 0.0, "drawn": 1.0}
_MOST_LOGITS = 2**26  # of one verification; 256 MiB in fp32


class Sample:
    """Some questions of every set, asked again as their stored answers were.

    Attributes:
        target: the study's.
        asked: the requests, by the kind of answer; the same questions of both kinds, in one order.
    """

    def __init__(self, config: StudyConfig, layout: Layout) -> None:
        self._layout, self._rows, self._tokens = layout, config.answers.rows, config.check.tokens
        self.target = AnsweringTarget(layout.target, config.device, self._rows)
        answers = {which: load_answers(layout, which) for which in TEMPERATURES}
        self._numbers = spread_over_sets([one.set for one in answers["greedy"]], config.check.questions)
        self._offsets = {
            which: cycle_offsets([one.continuation for one in found]) for which, found in answers.items()
        }
        self.asked = {
            which: [
                Asked(found[number], SamplingParams(TEMPERATURES[which], seed=found[number].seed))
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
        """See :func:`~vocabforge.study.check_compare.compare_outputs`."""
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
