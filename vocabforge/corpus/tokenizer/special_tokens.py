"""Special tokens of a tokenizer by purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from .files import added_tokens, usual_eos_ids
from .token_bytes import byte_level_characters, is_byte_level
from .tokenizer import TextTokenizer


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
    for names in ([f"<0x{byte:02X}>" for byte in range(256)], byte_level_characters()):
        ids = [vocab.get(name) for name in names]
        if all(token is not None for token in ids) and (names[0] == "<0x00>" or is_byte_level(tokenizer)):
            return tuple(token for token in ids if token is not None)
    return ()
