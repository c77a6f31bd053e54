"""How much of what a candidate drafts is accepted: decoded on prompts, saved as soon as it is known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from ...core.config import StrictModel
from ...core.errors import ArtifactError, DataError
from ...core.files import atomic_write_json, read_json
from ...decode.proposers.registry import Proposer
from ...decode.request import Generation
from ...evaluate.acceptance.meter import AcceptanceMeter
from ...evaluate.acceptance.prompts import LivePrompts
from ...evaluate.results.intervals import estimate, ratio
from ...evaluate.results.schema import Figure
from ...models.target.interface import Target
from ..types import Count


class PromptRow(StrictModel):
    """What one prompt gave.

    Attributes:
        prompt_tokens, new_tokens: of prompt and answer.
        cycles: drafts verified; of plain decoding the passes behind the prompt's.
        committed: tokens that the cycles committed before anything beyond a stop or limit was cut.
        identical: the answer is plain decoding's.
    """

    prompt_tokens: Count
    new_tokens: Count
    cycles: Count
    committed: Count
    identical: bool = True

    @classmethod
    def of(cls, prompt: Sequence[int], made: Generation, plain: Generation) -> PromptRow:
        """From a generation, and plain decoding's of the same prompt (or that one alone)."""
        # Plain decoding also counts the prompt's pass, which gives the first token.
        lengths = made.accept_lengths[1:] if made is plain else made.accept_lengths
        return cls(
            prompt_tokens=len(prompt),
            new_tokens=len(made.token_ids),
            cycles=len(lengths),
            committed=sum(lengths),
            identical=made.token_ids == plain.token_ids,
        )


def accepted_length(rows: Sequence[PromptRow]) -> Figure:
    """Mean tokens that a cycle commits, with its interval over prompts."""
    columns = np.array([[row.committed, row.cycles] for row in rows], dtype=np.float64)[:, None]  # (Q, 1, 2)
    return estimate(columns, ratio, pooled=True)


def digest(value: Any) -> str:
    """Of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("utf-8")).hexdigest()


class AcceptanceStore:
    """A folder with one file a candidate: rows by the digest of their prompt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, key: str) -> dict[str, PromptRow]:
        """What is known of a candidate.

        Raises:
            ArtifactError: the file is damaged.
        """
        path = self.folder / f"{key[:32]}.json"
        if not path.is_file():
            return {}
        try:
            body = read_json(path, "measured acceptance")
            return {name: PromptRow.model_validate(row) for name, row in body["rows"].items()}
        except (DataError, ValidationError, KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(
                "measured acceptance cannot be read",
                got=error.got if isinstance(error, DataError) else error,
                source=path,
                remedy="delete the file; its method is decoded again",
            ) from error

    def write(self, key: str, about: Mapping[str, Any], rows: Mapping[str, PromptRow]) -> None:
        """Save everything that is known of a candidate."""
        saved = {name: row.model_dump() for name, row in rows.items()}
        body = {"key": key, "about": dict(about), "rows": saved}
        atomic_write_json(self.folder / f"{key[:32]}.json", body)


class AcceptanceSource:
    """Rows of candidates on prompts: read from the store, otherwise decoded greedily and saved.

    Args:
        model: the target.
        prompts: all that may be asked for, in order.
        new: tokens a prompt.
        store: where rows are saved.
        identity: everything besides candidate and prompt that decides a row (hashes of target and drafter, dtype).

    Attributes:
        on_answers: called with the number of answers that were drafted and decoded.
    """

    def __init__(
        self,
        model: Target,
        prompts: LivePrompts,
        new: int,
        store: AcceptanceStore,
        identity: Mapping[str, Any],
    ) -> None:
        self.model, self.prompts, self.new, self.store = model, prompts, new, store
        self.identity = {**identity, "new_tokens": new, "stop_ids": sorted(prompts.stop_ids)}
        self._names = [digest(list(prompt)) for prompt in prompts.prompts]
        self._meters: dict[tuple[int, ...], AcceptanceMeter] = {}
        self._rows: dict[str, dict[str, PromptRow]] = {}
        self.on_answers: Callable[[int], object] = lambda count: None

    def __len__(self) -> int:
        return len(self.prompts.prompts)

    def key(self, about: Mapping[str, Any]) -> str:
        """Of a candidate's file."""
        return digest({**self.identity, "candidate": dict(about)})

    def plain(self) -> list[PromptRow]:
        """Plain decoding's rows, of all prompts."""
        return self.rows({"decoding": "plain"}, None, range(len(self)))

    def rows(
        self, about: Mapping[str, Any], proposer: Callable[[], Proposer] | None, places: Sequence[int]
    ) -> list[PromptRow]:
        """A candidate's rows, in the order of the places.

        Args:
            about: what decides its drafts, as JSON values.
            proposer: makes what decodes missing rows; None decodes plainly.
        """
        known = self.known(about)
        if wanted := tuple(place for place in places if self._names[place] not in known):
            for place, row in zip(wanted, self._decode(wanted, proposer), strict=True):
                known[self._names[place]] = row
            self.store.write(self.key(about), about, known)
        return [known[self._names[place]] for place in places]

    def known(self, about: Mapping[str, Any]) -> dict[str, PromptRow]:
        """A candidate's rows so far, by the digest of their prompt."""
        key = self.key(about)
        if key not in self._rows:
            self._rows[key] = self.store.read(key)
        return self._rows[key]

    def _decode(self, places: tuple[int, ...], proposer: Callable[[], Proposer] | None) -> list[PromptRow]:
        prompts = [self.prompts.prompts[place] for place in places]
        if places not in self._meters:  # a meter decodes plainly once
            chosen = LivePrompts(prompts, self.prompts.stop_ids)
            self._meters[places] = AcceptanceMeter(self.model, chosen, self.new)
        meter = self._meters[places]
        plain = meter.plain()
        made = plain
        if proposer is not None:
            made = meter.measure(proposer()).made
            self.on_answers(len(made))
        return [PromptRow.of(*three) for three in zip(prompts, made, plain, strict=True)]
