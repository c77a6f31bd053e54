"""What tells one tokenizer from another, and the check before two things are joined by token ids."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tokenizers import Tokenizer

from ..core.errors import MismatchError


def check_fingerprint(
    expected: str, got: str, *, expected_from: object, got_from: object, remedy: str | None = None
) -> None:
    """Refuse to join two things that were made with different tokenizers.

    Args:
        expected_from: where ``expected`` came from (``"the target /models/x"``).
        got_from: where ``got`` came from.

    Raises:
        MismatchError: they differ.
    """
    if expected != got:
        raise MismatchError(
            "these were made with different tokenizers, so their token ids mean different things",
            got=f"tokenizer {got[:16]}… of {got_from}",
            expected=f"tokenizer {expected[:16]}… of {expected_from}",
            remedy=remedy or "make both with the target's own tokenizer.json",
        )


def fingerprint_of(backend: Tokenizer) -> str:
    """Hex SHA-256 over the JSON of what decides ids: normaliser, pre-tokeniser, model, added tokens.

    Truncation, padding, decoder, post-processor and offset flags are left out: tools that save a tokenizer
    again write them differently, and no id of a text depends on them.
    """
    whole = json.loads(backend.to_str())
    added_keys = ("id", "content", "single_word", "lstrip", "rstrip", "normalized")
    body = {
        "normalizer": whole.get("normalizer"),
        "pre_tokenizer": _without(whole.get("pre_tokenizer"), "trim_offsets"),
        "model": whole["model"],
        "added_tokens": [
            {key: token.get(key) for key in added_keys} for token in whole.get("added_tokens") or ()
        ],
    }
    text = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _without(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return {name: _without(item, key) for name, item in value.items() if name != key}
    if isinstance(value, list):
        return [_without(item, key) for item in value]
    return value
