"""Byte forms of tokens, the only form in which two vocabularies can be compared.

The byte form of a token is what the tokenizer's decoder appends for it after other tokens. A leading space
therefore belongs to its token (``Ġthe``, ``▁the`` and WordPiece's ``the`` are ``b" the"``; ``##ing`` is
``b"ing"``), and the joined byte forms of a text's ids are the text after normalisation.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...core.errors import DataError
from .cut_parts import flat
from .tokenizer import TextTokenizer

_Step = Callable[[str], "str | bytes"]
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Replacements of the library's WordPiece decoder in each piece if clean-up is on, in its order.
_CLEAN_UP = (
    *((" " + mark, mark) for mark in (".", "?", "!", ",")),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


@dataclass(frozen=True, eq=False)
class TokenForms:
    """Byte forms of a tokenizer's tokens.

    Attributes:
        forms: V entries; None for special tokens, the unknown token and ids without a token.
        special: ids of special added tokens, the unknown token, and tokens that begin or end a text.
        added: ids of other added tokens (such as ``<think>``), which merges never produce.
        family: how the vocabulary represents bytes, for display.
    """

    forms: tuple[bytes | None, ...]
    special: frozenset[int]
    added: frozenset[int]
    family: str


def token_forms(tokenizer: TextTokenizer) -> TokenForms:
    """Return byte forms, special ids and added ids, derived from the parts of the tokenizer.

    Raises:
        DataError: the tokenizer's decoder is not supported.
    """
    content = json.loads(tokenizer.backend.to_str())
    family, spell = _family(content, tokenizer)
    every = {int(token["id"]): token for token in content.get("added_tokens") or ()}
    added = {token_id: token for token_id, token in every.items() if token_id < tokenizer.vocab_size}
    special = {token_id for token_id, token in added.items() if token["special"]} | _unknown_ids(content)
    special |= _control_ids(tokenizer, added)
    forms: list[bytes | None] = [None] * tokenizer.vocab_size
    for token, token_id in tokenizer.backend.get_vocab(with_added_tokens=False).items():
        forms[token_id] = spell(token)
    for token_id, token in added.items():
        forms[token_id] = _utf8(token["content"])
    for token_id in special:
        forms[token_id] = None
    plain = frozenset(added) - special
    return TokenForms(tuple(forms), frozenset(special), plain, family)


def _unknown_ids(content: Mapping[str, Any]) -> set[int]:
    """Return the id of the unknown token, which has no bytes even if it is not marked as special."""
    model = content["model"]
    if isinstance(model.get("unk_id"), int):  # Unigram
        return {model["unk_id"]}
    vocab, name = model.get("vocab"), model.get("unk_token")
    return {int(vocab[name])} if isinstance(vocab, dict) and name in vocab else set()


def _control_ids(tokenizer: TextTokenizer, added: Mapping[int, Any]) -> set[int]:
    """Return the tokens that begin or end a text, unless they are ordinary text.

    An end token named only in ``generation_config.json`` may be ordinary (a line end) and remains text.
    """
    named = (tokenizer.special_text.get(name) for name in ("bos_token", "eos_token"))
    ids = {tokenizer.backend.token_to_id(text) for text in named if text is not None}
    ids |= {token_id for token_id in (*tokenizer.eos_ids, *tokenizer.prefix_ids) if token_id in added}
    return {token_id for token_id in ids if token_id is not None and token_id < tokenizer.vocab_size}


def _family(content: Mapping[str, Any], tokenizer: TextTokenizer) -> tuple[str, Callable[[str], bytes]]:
    if is_byte_level(tokenizer):
        return "byte-level", _byte_level(content["model"])
    steps = [*_decoder_steps(content, tokenizer)]
    if content["model"].get("byte_fallback") and _byte_fallback not in steps:
        steps.append(_byte_fallback)
    name = f"{content['model'].get('type', 'unknown model')}"
    if _byte_fallback in steps:
        name += " with byte fallback"

    def spell(token: str) -> bytes:
        value: str | bytes = token
        for step in steps:
            if isinstance(value, str):
                value = step(value)
        return value if isinstance(value, bytes) else _utf8(value)

    return name, spell


def is_byte_level(tokenizer: TextTokenizer) -> bool:
    """Return whether any part of the tokenizer maps bytes to characters (else "a" is not a byte)."""
    parts = (("pre_tokenizer", "pretokenizers"), ("normalizer", "normalizers"), ("decoder", "decoders"))
    steps = (step for name, key in parts for step in flat(tokenizer.structure[name], key))
    return any(step["type"] == "ByteLevel" for step in steps)


@cache
def byte_level_characters() -> tuple[str, ...]:
    """Return GPT-2's character for each byte 0..255 (Radford et al. 2019)."""
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    others = (byte for byte in range(256) if byte not in printable)
    moved = {byte: chr(256 + place) for place, byte in enumerate(others)}
    return tuple(chr(byte) if byte in printable else moved[byte] for byte in range(256))


def _byte_level(model: Mapping[str, Any]) -> Callable[[str], bytes]:
    bytes_of = {character: byte for byte, character in enumerate(byte_level_characters())}
    suffix = model.get("end_of_word_suffix") or ""

    def spell(token: str) -> bytes:
        ends_word = bool(suffix) and token.endswith(suffix)
        text = token.removesuffix(suffix) if ends_word else token
        if all(character in bytes_of for character in text):
            form = bytes(bytes_of[character] for character in text)
        else:  # as in the library's decoder
            form = _utf8(text)
        return form + b" " if ends_word else form

    return spell


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoder_steps(content: Mapping[str, Any], tokenizer: TextTokenizer) -> list[_Step]:
    """Return the decoder as functions on one token after others, derived from other parts if missing."""
    steps: list[_Step] = []
    fused = False
    for part in flat(content.get("decoder"), "decoders"):
        kind = part["type"]
        pattern = part.get("pattern") or {}
        if kind == "Fuse":
            fused = True
        elif kind == "Strip":
            if not fused:
                steps.append(_strip(part["content"], int(part["start"]), int(part["stop"])))
            elif part["stop"]:
                raise _not_known("a decoder that strips the end of the text", tokenizer)
        elif kind == "ByteFallback":
            steps.append(_byte_fallback)
        elif kind == "Metaspace":
            steps.append(_replace(part["replacement"], " "))
        elif kind == "Replace" and "String" in pattern:
            steps.append(_replace(pattern["String"], part["content"]))
        elif kind == "WordPiece":
            steps.append(_word_piece(part["prefix"], clean_up=bool(part["cleanup"])))
        elif kind == "BPEDecoder":
            steps.append(_replace(part["suffix"], " "))
        else:
            raise _not_known(f"decoder {kind}{' with a regular expression' if pattern else ''}", tokenizer)
    return steps if content.get("decoder") is not None else _steps_without_decoder(content, tokenizer)


def _steps_without_decoder(content: Mapping[str, Any], tokenizer: TextTokenizer) -> list[_Step]:
    model = content["model"]
    cutters = flat(content.get("pre_tokenizer"), "pretokenizers")
    for part in cutters:
        if part["type"] == "Metaspace":
            return [_replace(part["replacement"], " ")]
    for part in flat(content.get("normalizer"), "normalizers"):
        if part["type"] == "Replace" and part["pattern"] == {"String": " "}:
            return [_replace(part["content"], " ")]
    if model.get("end_of_word_suffix"):
        return [_replace(model["end_of_word_suffix"], " ")]
    if model.get("continuing_subword_prefix"):
        return [_word_piece(model["continuing_subword_prefix"], clean_up=False)]
    if model.get("type") == "WordLevel":
        return [lambda word: " " + word]
    if not cutters:  # nothing is dropped between tokens: they are the text itself
        return []
    raise _not_known("no decoder, and word pieces without a mark", tokenizer)


def _replace(old: str, new: str) -> _Step:
    return lambda token: token.replace(old, new)


def _strip(character: str, start: int, stop: int) -> _Step:
    def step(token: str) -> str:
        first = len(token) - len(token.lstrip(character))
        token = token[min(first, start) :]
        last = len(token) - len(token.rstrip(character))
        return token[: len(token) - min(last, stop)]

    return step


def _word_piece(prefix: str, *, clean_up: bool) -> _Step:
    def step(token: str) -> str:
        token = token[len(prefix) :] if token.startswith(prefix) else " " + token
        for old, new in _CLEAN_UP if clean_up else ():
            token = token.replace(old, new)
        return token

    return step


def _byte_fallback(token: str) -> str | bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token


def _not_known(what: str, tokenizer: TextTokenizer) -> DataError:
    return DataError(
        "the bytes that this tokenizer's tokens stand for are not known",
        got=what,
        expected="a ByteLevel, Metaspace, WordPiece, BPEDecoder, Replace, ByteFallback, Fuse or Strip decoder",
        source=tokenizer.source,
        remedy="save the tokenizer with a decoder of one of these kinds",
    )


_ESCAPES = {" ": "␣", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", "␣": "\\u2423", "◌": "\\u25cc"}
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"}


def readable(token: bytes | str) -> str:
    """Return a token as readable text on one line, distinct for distinct tokens.

    A space is ``␣``; line ends and tabs are escaped; a byte outside valid UTF-8 is ``\\xNN``, other invisible
    characters are ``\\uNNNN``; a leading combining mark is placed on a dotted circle.
    """
    text = token.decode("utf-8", "surrogateescape") if isinstance(token, bytes) else token
    shown = "".join(map(_shown, text))
    return "◌" + shown if text and unicodedata.category(text[0]).startswith("M") else shown


def _shown(character: str) -> str:
    code = ord(character)
    if character in _ESCAPES:
        return _ESCAPES[character]
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if unicodedata.category(character) in _UNSEEN:
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return character
