"""Select a draft vocabulary: forced ids, then the most frequent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...core.errors import DataError, UsageError
from ...corpus.tokenizer.files import added_tokens, usual_eos_ids
from ...corpus.tokenizer.tokenizer import TextTokenizer


@dataclass(frozen=True)
class SpecialTokens:
    """Special ids by purpose.

    Attributes:
        eos: ends of sequence and turn.
        control: special tokens of the chat template.
        tools: added tokens of the chat template for tool calls and thinking.
        bytes: the 256 single bytes, empty if any is missing.
        others: other special tokens.
    """

    eos: tuple[int, ...] = ()
    control: tuple[int, ...] = ()
    tools: tuple[int, ...] = ()
    bytes: tuple[int, ...] = ()
    others: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> SpecialTokens:
        """Return the special ids of a tokenizer; end tokens above its highest id are excluded.

        Tokens with a usual end-token name are included even if no file names them: files often name only the
        end of a turn, and a drafter must be able to draft every end.
        """
        named = tuple(token for token in tokenizer.eos_ids if token < tokenizer.vocab_size)
        usual = (token for token in usual_eos_ids(tokenizer.backend) if token < tokenizer.vocab_size)
        eos = tuple(dict.fromkeys((*named, *usual)))
        known = {*eos, *tokenizer.control_ids}
        others = tuple(
            token
            for token, added in added_tokens(tokenizer.backend)
            if added.special and token not in known and token < tokenizer.vocab_size
        )
        return cls(eos, tokenizer.control_ids, tokenizer.tool_ids, byte_ids(tokenizer), others)

    @classmethod
    def from_json(cls, value: Mapping[str, Sequence[int]]) -> SpecialTokens:
        return cls(**{name: tuple(int(token) for token in ids) for name, ids in value.items()})

    def to_json(self) -> dict[str, list[int]]:
        return {name: list(ids) for name, ids in asdict(self).items()}


def byte_ids(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Return the ids of the tokens for the single bytes 0..255, or () if one is missing.

    Byte fallback spells them ``<0x00>`` ... ``<0xFF>``; byte-level BPE uses the 256 characters of GPT-2's
    table (Radford et al. 2019).
    """
    vocab = tokenizer.backend.get_vocab(with_added_tokens=False)
    from ..overlap.token_bytes import (  # not needed to read a subset
        byte_level_characters,
        is_byte_level,
    )

    for names in ([f"<0x{byte:02X}>" for byte in range(256)], byte_level_characters()):
        ids = [vocab.get(name) for name in names]
        if all(token is not None for token in ids) and (names[0] == "<0x00>" or is_byte_level(tokenizer)):
            return tuple(token for token in ids if token is not None)
    return ()


Fill = Literal["error", "lowest-id"]
Ids = npt.NDArray[np.int64]


def select(counts: Ids, size: int, forced: Iterable[int] = (), *, fill: Fill = "error") -> Ids:
    """Select the ``size`` ids of a draft vocabulary, (R,) int64 in rank order, unique.

    Forced ids come first, then the others by count (V,), descending; ties go to the lower id. FR-Spec (Zhao
    et al. 2025) and VocabTrim (Goel et al. 2025) differ only in what was counted. If fewer than R ids are
    forced or have a count, ``fill`` applies: ``error`` raises, ``lowest-id`` adds the lowest ids without a
    count.

    Raises:
        UsageError: R outside 1..V or below the number of forced ids, or a forced id outside the vocabulary.
        DataError: too few ids have a count and ``fill`` is ``error``.
    """
    vocab_size = len(counts)
    must = np.unique(np.fromiter(forced, dtype=np.int64))
    if not 1 <= size <= vocab_size:
        raise UsageError(
            "the size is outside the vocabulary", got=f"{size:,}", expected=f"1 to {vocab_size:,}"
        )
    if len(must) and not (must[0] >= 0 and must[-1] < vocab_size):
        outside = must[(must < 0) | (must >= vocab_size)].tolist()
        raise UsageError(
            "a forced id is not in the vocabulary", got=outside, expected=f"0 to {vocab_size - 1:,}"
        )
    if size < len(must):
        raise UsageError(
            "the size is below the number of forced ids",
            got=f"{size:,}",
            expected=f"at least {len(must):,}, for {shortened(must)}",
            remedy="choose a larger size, or force fewer ids",
        )
    order = np.argsort(-counts, kind="stable")  # ties keep ascending ids
    is_forced = np.zeros(vocab_size, dtype=np.bool_)
    is_forced[must] = True
    ranked = np.concatenate([order[is_forced[order]], order[~is_forced[order]]])[:size]
    available = int(np.count_nonzero(is_forced | (counts > 0)))
    if available < size and fill == "error":
        raise DataError(
            "too few token ids have a count for this size",
            got=f"{available:,} ids with a count or forced",
            expected=f"{size:,}",
            remedy="count more text, choose a smaller size, or pass --fill lowest-id",
        )
    return ranked.astype(np.int64)


def shortened(ids: Ids) -> str:
    """Return the first ids and their total number, for messages."""
    shown = ", ".join(map(str, ids[:12].tolist()))
    return shown + (f", … ({len(ids):,} ids)" if len(ids) > 12 else "")
