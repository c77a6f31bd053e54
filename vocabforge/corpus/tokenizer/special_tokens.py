"""Special tokens of a tokenizer by purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from .files import added_tokens, usual_eos_ids
from .tokenizer import TextTokenizer


@dataclass(frozen=True)
class SpecialTokens:
    """Special ids by purpose.

    Attributes:
        eos: ends of sequence and turn.
        control: special tokens of the chat template.
        tools: added tokens of the chat template for tool calls and thinking.
        others: other special tokens.
    """

    eos: tuple[int, ...] = ()
    control: tuple[int, ...] = ()
    tools: tuple[int, ...] = ()
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
        return cls(eos, tokenizer.control_ids, tokenizer.tool_ids, others)

    @classmethod
    def from_json(cls, value: Mapping[str, Sequence[int]]) -> SpecialTokens:
        # Earlier tables also have "bytes".
        return cls(**{name: tuple(map(int, ids)) for name, ids in value.items() if name != "bytes"})

    def to_json(self) -> dict[str, list[int]]:
        return {name: list(ids) for name, ids in asdict(self).items()}
