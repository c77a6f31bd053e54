"""What every family of sample texts produces."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Exchange:
    """One question with its answer; ``reference`` is what a grader would look for, where there is one."""

    prompt: str
    answer: str
    reference: str | None = None


@dataclass(frozen=True)
class Conversation:
    """One or more exchanges of a family; ``category`` is the name that Spec-Bench uses."""

    category: str
    exchanges: tuple[Exchange, ...]

    def messages(self) -> list[dict[str, str]]:
        """The conversation in the OpenAI ``messages`` form."""
        return [
            message
            for exchange in self.exchanges
            for message in (
                {"role": "user", "content": exchange.prompt},
                {"role": "assistant", "content": exchange.answer},
            )
        ]


Family = Callable[[random.Random], Conversation]


def article(word: str) -> str:
    """The word with its indefinite article."""
    return f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}"


def capital(text: str) -> str:
    """The text with its first letter in upper case and the rest as it was."""
    return text[:1].upper() + text[1:]


def listing(items: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *head, last = items
    return f"{', '.join(head)} and {last}" if head else last
