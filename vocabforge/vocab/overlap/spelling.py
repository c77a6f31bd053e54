"""Spelling of bytes by a tokenizer in the middle of a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy
from typing import Any

from tokenizers import Tokenizer

from ...corpus.tokenizer.cut_parts import Part, flat
from ...corpus.tokenizer.token_bytes import TokenForms, byte_level_characters, is_byte_level
from ...corpus.tokenizer.tokenizer import TextTokenizer

_BATCH = 20_000
_EMPTY: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "post_processor": None,
    "added_tokens": [],
    "decoder": None,
    "model": {"type": "BPE", "vocab": {}, "merges": []},
}


class Speller:
    """Speller of bytes after other text, with a tokenizer's pre-tokeniser and model.

    Of the normaliser, only the replacement of a space by its mark is used. A spelling is valid only if the
    bytes of its tokens equal the requested bytes. Bytes that are not text, or that the tokenizer reads
    differently at the beginning of a word, are spelled by the model (byte-level) or by longest match over the
    byte forms.
    """

    def __init__(self, tokenizer: TextTokenizer, forms: TokenForms) -> None:
        self._inside = _inside_text(tokenizer, forms)
        self._characters = byte_level_characters() if is_byte_level(tokenizer) else None
        self._know(forms.forms)

    def _know(self, forms: Sequence[bytes | None]) -> None:
        self._forms = forms
        self._by_form: dict[bytes, int] = {}
        for token, form in enumerate(forms):
            if form:
                self._by_form.setdefault(form, token)
        self._longest = max(map(len, self._by_form), default=0)

    def within(self, rows: int) -> Speller:
        """Return a speller restricted to the tokens below ``rows``."""
        if rows >= len(self._forms):
            return self
        fewer = copy(self)
        fewer._know([form if token < rows else None for token, form in enumerate(self._forms)])
        return fewer

    def spell(self, wanted: Sequence[bytes | None]) -> list[list[int] | None]:
        """Return the ids for each entry: empty without a spelling, None for an empty entry (None or b"")."""
        spellings: list[list[int] | None] = [[] if form else None for form in wanted]
        for start in range(0, len(wanted), _BATCH):
            places, texts = [], []
            for place, form in enumerate(wanted[start : start + _BATCH], start):
                text = _text(form) if form else None
                if text is not None:
                    places.append(place)
                    texts.append(text)
            rows = self._inside.encode_batch_fast(texts, add_special_tokens=False)
            for place, row in zip(places, rows, strict=True):
                spellings[place] = self._checked(row.ids, wanted[place])
        for place, form in enumerate(wanted):
            if form and not spellings[place]:
                spellings[place] = self._piecewise(form)
        return spellings

    def _checked(self, ids: list[int], form: bytes | None) -> list[int]:
        parts = [self._forms[token] for token in ids]
        whole = None not in parts and b"".join(part for part in parts if part is not None) == form
        return ids if whole else []

    def _piecewise(self, form: bytes) -> list[int]:
        if self._characters is not None:
            spelled = "".join(self._characters[byte] for byte in form)
            spelling = self._checked([token.id for token in self._inside.model.tokenize(spelled)], form)
            if spelling:
                return spelling
        ids, at = [], 0
        while at < len(form):
            ends = range(min(len(form), at + self._longest), at, -1)
            end = next((end for end in ends if form[at:end] in self._by_form), None)
            if end is None:
                return []
            ids.append(self._by_form[form[at:end]])
            at = end
        return ids


def _text(form: bytes) -> str | None:
    try:
        return form.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _inside_text(tokenizer: TextTokenizer, forms: TokenForms) -> Tokenizer:
    backend = tokenizer.backend
    steps = {
        "normalizers": list(filter(_marks, flat(tokenizer.structure["normalizer"], "normalizers"))),
        "pretokenizers": [
            _without_space(step) for step in flat(tokenizer.structure["pre_tokenizer"], "pretokenizers")
        ],
    }
    before, cut = ({"type": "Sequence", key: some} if some else None for key, some in steps.items())
    inside = Tokenizer.from_str(json.dumps({**_EMPTY, "normalizer": before, "pre_tokenizer": cut}))
    inside.model = backend.model  # shared: reloading a large model takes seconds
    added = backend.get_added_tokens_decoder()
    for token_id, token in added.items():
        token.special = token_id in forms.special
    # In this order, they get their original ids.
    inside.add_tokens([added[token_id] for token_id in sorted(added)])
    inside.encode_special_tokens = True
    return inside


def _marks(step: Part) -> bool:
    replaces = step["type"] == "Replace" and step["pattern"] == {"String": " "}
    return replaces or step["type"] == "ByteLevel"


def _without_space(part: Part) -> Part:
    if part["type"] == "ByteLevel":
        return {**part, "add_prefix_space": False}
    return {**part, "prepend_scheme": "never"} if part["type"] == "Metaspace" else part
