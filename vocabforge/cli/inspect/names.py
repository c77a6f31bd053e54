"""Texts of token ids, if a tokenizer is given or found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...core.artifact import MANIFEST, Artifact
from ...core.errors import DataError, VocabForgeError
from ...core.files import read_json
from ...corpus.tokenizer.tokenizer import TextTokenizer, check_fingerprint, load_tokenizer
from ...vocab.overlap.token_bytes import readable, token_bytes

_OPTIONS = ("--tokenizer", "--target", "--counts", "--drafter")
_DEPTH = 3


class TokenNames:
    """Printable texts of token ids.

    Args:
        tokenizer: if None, every text is empty.
    """

    def __init__(self, tokenizer: TextTokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._forms: Sequence[bytes | None] = ()
        self.source = None if tokenizer is None else tokenizer.source
        if tokenizer is not None:
            try:
                self._forms = token_bytes(tokenizer)
            except DataError:  # fall back to the tokens as written in the vocabulary
                self._forms = ()

    def text(self, token: int) -> str:
        """Return a token's bytes in readable form, or the name of a special token."""
        if self._tokenizer is None:
            return ""
        form = self._forms[token] if token < len(self._forms) else None
        return readable(
            form if form is not None else self._tokenizer.backend.id_to_token(token) or "(no token)"
        )


def names_for(artifact: Artifact, given: Path | None) -> TokenNames:
    """Return texts for an artefact's ids from the given tokenizer, or from one found via its command line.

    A tokenizer found there is only used if its fingerprint matches the artefact's.

    Raises:
        MismatchError: the given tokenizer does not match the artefact.
        DataError: the given tokenizer cannot be read.
    """
    fingerprint = artifact.meta.get("fingerprint") or artifact.meta.get("tokenizer_fingerprint")
    if given is not None:
        tokenizer = load_tokenizer(given)
        if fingerprint:
            check_fingerprint(
                str(fingerprint),
                tokenizer.fingerprint,
                expected_from=f"the artefact {artifact.path}",
                got_from=given,
                remedy="give the tokenizer that the artefact was made with",
            )
        return TokenNames(tokenizer)
    for path in _recorded(artifact.manifest, _DEPTH) if fingerprint else ():
        try:
            tokenizer = load_tokenizer(path)
        except (VocabForgeError, OSError):
            continue
        if tokenizer.fingerprint == fingerprint:
            return TokenNames(tokenizer)
    return TokenNames(None)


def _recorded(manifest: Mapping[str, Any], depth: int) -> Iterator[Path]:
    """Yield the tokenizers in a command line, or in the command lines of artefacts that it names."""
    command = manifest.get("command")
    words = (
        [part for word in command for part in str(word).split("=", 1)] if isinstance(command, list) else []
    )
    for path in [Path(value) for option, value in pairwise(words) if option in _OPTIONS]:
        try:
            if path.is_file() or (path / "tokenizer.json").is_file():
                yield path
            elif depth and (path / MANIFEST).is_file():
                other = read_json(path / MANIFEST)
                yield from _recorded(other, depth - 1) if isinstance(other, dict) else ()
        except (DataError, OSError):
            continue
