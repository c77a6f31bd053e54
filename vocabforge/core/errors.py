"""Error types for problems that a user can cause and fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class VocabForgeError(Exception):
    """Failure caused by input, environment or configuration, not by a bug.

    Args:
        message: one sentence that describes the problem.
        got: the value found.
        expected: the valid value or form.
        source: origin of the value (file, line, option).
        remedy: next step for the user.

    The command line prints it without a traceback and exits with ``exit_code``.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        got: object = None,
        expected: object = None,
        source: object = None,
        remedy: str | None = None,
    ) -> None:
        self.message = message
        self.got = got
        self.expected = expected
        self.source = source
        self.remedy = remedy
        super().__init__(self.render())

    def render(self) -> str:
        """Return the message with its labelled details, one per line."""
        details = (
            ("got", self.got),
            ("expected", self.expected),
            ("source", self.source),
            ("remedy", self.remedy),
        )
        lines = [self.message]
        lines += [f"  {label + ':':<10}{value}" for label, value in details if value is not None]
        return _printable("\n".join(lines))


def _printable(text: str) -> str:
    """Escape control characters: messages quote the contents of files."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else repr(letter)[1:-1] for letter in text
    )


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to ``name``, or None if none is similar."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return the remedy for a misspelt name, or None if no known name is similar."""
    close = closest(name, known)
    return None if close is None else f"did you mean {close}?"


class UsageError(VocabForgeError):
    """The command line itself is wrong (exit code 2)."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration file or an override is wrong (exit code 2)."""


class DataError(VocabForgeError):
    """Input data (text, JSON, tokenizer, checkpoint) cannot be used."""


class UnsupportedError(DataError):
    """The lean decoder does not support this model; Transformers may."""

    def __init__(
        self,
        message: str,
        *,
        remedy: str | None = "decode it with Transformers: --target-backend transformers",
        **details: object,
    ) -> None:
        super().__init__(message, remedy=remedy, **details)


class ArtifactError(VocabForgeError):
    """An artefact folder is missing, incomplete, damaged or has the wrong kind."""


class MismatchError(VocabForgeError):
    """Two inputs are each valid but do not belong together (tokenizer, sizes, target)."""
