"""Count with kitoken: BPE over unsplit text with byte fallback, as in conversions from SentencePiece."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

from tokenizers import Tokenizer

from ...core.threads import core_count
from ...corpus.tokenizer.cut_parts import flat
from ...corpus.tokenizer.cuts import CutRule, NoCut, all_bytes, interior_form, library_ids
from ...corpus.tokenizer.tokenizer import TextTokenizer
from .engines import NotSuited, PlainEngine

_MARK = "▁"
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": _MARK}
_PREPEND = {"type": "Prepend", "prepend": _MARK}
_NO_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
_MOST_ODD = 100
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


class KitokenEngine(PlainEngine):
    """kitoken with one thread per core; texts that match ``odd`` use the plain path, as their ids may differ.

    Args:
        natives: kitoken's tokenizer for each backend of the rule, by ``id``.
    """

    name = "kitoken"

    def __init__(
        self,
        tokenizer: TextTokenizer,
        rule: CutRule | NoCut,
        natives: Mapping[int, Any],
        odd: re.Pattern[str],
    ) -> None:
        super().__init__(tokenizer, rule)
        self._natives, self._odd = natives, odd
        # Set in each counting process, so that all processes together have one thread per core.
        self._threads = int(os.environ.get("RAYON_NUM_THREADS") or core_count())
        self._pool = ThreadPoolExecutor(self._threads)

    def _ids(self, backend: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        native = self._natives[id(backend)]

        def encoded(some: Sequence[str]) -> list[list[int]]:
            rows = native.encode_all(list(some), True)
            for at, text in enumerate(some):
                if self._odd.search(text):
                    rows[at] = library_ids(backend, [text])[0]
            return rows

        size = max(1, len(texts) // (4 * self._threads))
        shares = (texts[at : at + size] for at in range(0, len(texts), size))
        return list(chain.from_iterable(self._pool.map(encoded, shares)))


def make(tokenizer: TextTokenizer, rule: CutRule | NoCut) -> KitokenEngine:
    """Create the engine, which supports BPE vocabularies in SentencePiece's form.

    Raises:
        NotSuited: kitoken is not installed, or the tokenizer's structure or merges are not supported.
    """
    if (reason := unproven(tokenizer)) is not None:
        raise NotSuited(f"kitoken is not known to be exact for {reason}")
    try:
        import kitoken
    except ImportError as error:
        raise NotSuited("kitoken is not installed (pip install kitoken)") from error
    whole = json.loads(tokenizer.backend.to_str())
    odd = _odd_texts(tokenizer.backend, whole)
    forms = {id(tokenizer.backend): whole}
    if isinstance(rule, CutRule) and rule.interior is not rule.backend:
        forms[id(rule.interior)] = interior_form(whole)
    simple = {key: json.dumps(_simplified(form)).encode() for key, form in forms.items()}
    try:
        natives = {key: kitoken.Kitoken.from_tokenizers(form) for key, form in simple.items()}
    except Exception as error:  # the plain engine replaces it, whatever the error
        raise NotSuited(f"kitoken rejects the tokenizer: {error}") from error
    return KitokenEngine(tokenizer, rule, natives, odd)


def unproven(tokenizer: TextTokenizer) -> str | None:
    """Return the part of a tokenizer for which kitoken is not known to be exact, or None."""
    whole, model = tokenizer.structure, tokenizer.structure["model"]
    before, after = flat(whole["normalizer"], "normalizers"), whole["pre_tokenizer"]
    marked = after is not None and after["type"] == "Metaspace" and after["replacement"] == _MARK
    if marked and not after["split"]:
        if before:
            return "a normalizer before Metaspace"
    elif [*before] not in ([_PREPEND, _REPLACE], [_REPLACE]) or after not in (None, _NO_SPLIT):
        return "its normalizer and pre-tokenizer"
    if model["type"] != "BPE" or not all_bytes(model, tokenizer.backend.get_vocab(with_added_tokens=False)):
        return f"the model {model['type']} without all bytes to fall back to"
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"):
        if model.get(name):
            return f"a BPE model with {name}"
    for token in whole["added_tokens"]:
        if any(token[flag] for flag in _FLAGS):
            return f"the added token {token['content']!r}"
    return None


def _results(model: Mapping[str, Any]) -> Counter[str]:
    return Counter(left + right for left, right in model["merges"])


def _odd_texts(backend: Tokenizer, whole: Mapping[str, Any]) -> re.Pattern[str]:
    """Return a pattern for texts that kitoken may encode differently.

    kitoken stores tokens, not pairs: it may merge any two symbols that form a token, and a stretch between
    spaces that is a token becomes this token. Every split of a token into two tokens must therefore be a
    merge (as in SentencePiece), and the pattern matches tokens that the library encodes as several.

    Raises:
        NotSuited: a split of a token is not a merge, or too many tokens are encoded as several.
    """
    model, vocab = whole["model"], whole["model"]["vocab"]
    results = _results(model)
    for token, count in results.items():
        if sum(token[:at] in vocab and token[at:] in vocab for at in range(1, len(token))) != count:
            raise NotSuited(f"kitoken would merge to {token!r} where the tokenizer has no merge")
    rows = Tokenizer(backend.model).encode_batch_fast([*results], add_special_tokens=False)
    split = [token.strip(_MARK) for token, row in zip(results, rows) if row.ids != [vocab[token]]]
    if len(split) > _MOST_ODD or not all(split):
        raise NotSuited(f"{len(split):,} of its tokens are encoded as several")
    added = (token["content"] for token in whole["added_tokens"])
    # A literal "▁▁" is an added token, two spaces are not.
    marked = [content for content in added if _MARK in content]
    return re.compile("|".join(map(re.escape, [*split, *marked])) or r"(?!)")


def _spelled(letters: Iterable[str]) -> str:
    """Return characters as escapes of a Rust regular expression."""
    return "".join(f"\\x{{{ord(letter):X}}}" for letter in letters)


def _simplified(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokenizer's JSON in a form that kitoken reads correctly and fast.

    Raises:
        NotSuited: merges can produce an added token after which text is encoded as at the start.
    """
    model, results = whole["model"], _results(whole["model"])
    vocab = {
        token: at
        for token, at in model["vocab"].items()
        if len(token) == 1 or token in results or re.fullmatch("<0x[0-9A-F]{2}>", token)
    }
    # The longest token is matched first.
    added = sorted(whole["added_tokens"], key=lambda token: -len(token["content"]))
    made = [token["content"] for token in added if token["content"] in vocab]
    # kitoken leaves these to the merges. Split from the text, each is a stretch that is a token.
    apart = [content for content in made if _MARK not in content]
    before = flat(whole["pre_tokenizer"], "pretokenizers")
    metaspace = [step for step in before if step["type"] == "Metaspace"]
    if made and (_PREPEND in flat(whole["normalizer"], "normalizers") or metaspace):
        raise NotSuited(f"kitoken is not known to be exact for the added token {made[0]!r}")
    # Stretches end before a mark, unless a token has it after the same character, so no merge crosses an end.
    held = _spelled({character for token in vocab for character in re.findall(f"([^{_MARK}]){_MARK}", token)})
    stretch = f"[^{_MARK}{held}]" + (f"|[{held}]{_MARK}*" if held else "")
    patterns = ["|".join(map(_spelled, apart))] if apart else []
    patterns.append(f"{_MARK}*(?:{stretch})+|{_MARK}+")
    return {
        **whole,
        "post_processor": None,
        "decoder": None,
        "added_tokens": [{**token, "special": True} for token in added if token["content"] not in made],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                *metaspace,
                *(
                    {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
                    for pattern in patterns
                ),
            ],
        },
        # With all bytes nothing is unknown; kitoken would fuse literal unknown tokens.
        "model": {**model, "vocab": vocab, "unk_token": None, "fuse_unk": False},
    }
