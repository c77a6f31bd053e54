"""Texts of token ids, if a tokenizer is given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...core.artifact import Artifact
from ...core.errors import DataError
from ...corpus.tokenizer.tokenizer import TextTokenizer, check_fingerprint, load_tokenizer
from ...vocab.overlap.token_bytes import readable, token_bytes


class TokenNames:
    """Printable texts of token ids.

    Args:
        tokenizer: without one every text is empty.
    """

    def __init__(self, tokenizer: TextTokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._forms: Sequence[bytes | None] = ()
        self.source = None if tokenizer is None else tokenizer.source
        if tokenizer is not None:
            try:
                self._forms = token_bytes(tokenizer)
            except DataError:  # the tokens as their vocabulary writes them are better than none
                self._forms = ()

    def text(self, token: int) -> str:
        """One token: its bytes readably; a special token by its name."""
        if self._tokenizer is None:
            return ""
        form = self._forms[token] if token < len(self._forms) else None
        return readable(
            form if form is not None else self._tokenizer.backend.id_to_token(token) or "(no token)"
        )


def names_for(artifact: Artifact, given: Path | None) -> TokenNames:
    """Texts for an artefact's ids, if a tokenizer is given."""
    if given is None:
        return TokenNames(None)
    tokenizer = load_tokenizer(given)
    fingerprint = artifact.meta.get("fingerprint") or artifact.meta.get("tokenizer_fingerprint")
    if fingerprint:
        check_fingerprint(
            str(fingerprint),
            tokenizer.fingerprint,
            expected_from=f"the artefact {artifact.path}",
            got_from=given,
            remedy="give the tokenizer that the artefact was made with",
        )
    return TokenNames(tokenizer)
