"""Safe cuts of a text, which do not change any token.

A cut at ``p`` is proven if the ids of a text equal those of ``text[:p]`` followed by those of ``text[p:]``,
with the latter encoded as a continuation (``interior``: no prefix, nothing stripped on the left). A component
that is not listed in :mod:`.cut_parts` results in :class:`NoCut`. There are two ways to prove a cut:

1. A pre-tokeniser splits at ``p`` in any context. Models process pieces independently (except for dropout).
2. Nothing splits, and a BPE model receives the whole text, as in conversions from SentencePiece. A merge
   across the cut would make a token with ``▁`` (a replaced space, the first character on the right) after
   another character. Without such a token, merges on the left happen in the same order with or without the
   right part. Unknown characters are not fused across ``▁``, which is a token. The same holds for a newline.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Tokenizer

from .cut_parts import (
    LINE,
    NEWLINE,
    NOT_VISIBLE,
    PLAIN,
    SPACE,
    Normal,
    NotProven,
    Part,
    Splits,
    flat,
    read_normalizer,
    read_pre_tokenizer,
)
from .tokenizer import TextTokenizer


def library_ids(backend: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts from the tokenizers library, without special tokens."""
    return [row.ids for row in backend.encode_batch_fast(list(texts), add_special_tokens=False)]


@dataclass(frozen=True)
class NoCut:
    """Rule for a tokenizer whose texts are never cut; ``reason`` names the component that is not proven."""

    reason: str


@dataclass(frozen=True, eq=False)
class CutRule:
    """Rule for where any text may be cut; each place depends on ``margin`` characters on both sides.

    Attributes:
        interior: tokenizer for text after a cut without added tokens; ``backend`` itself if they agree.
    """

    backend: Tokenizer
    interior: Tokenizer
    margin: int
    _cut: re.Pattern[str]
    _added: re.Pattern[str]

    def first(self, text: str, start: int = 0) -> int | None:
        """Return the smallest proven cut ``p`` with ``max(start, 1) <= p < len(text)``, or None."""
        match = self._cut.search(text, max(start, 1))
        return None if match is None else match.start()

    def around(self, text: str, at: int) -> tuple[int, int]:
        """Return the range from the second-last cut up to ``at`` to the first cut from ``at`` on.

        Without such cuts, the range extends to the start or the end of the text.
        """
        reach = 24
        while True:
            matches = self._cut.finditer(text, max(1, at - reach), at + self.margin)
            cuts = [cut.start() for cut in matches if cut.start() <= at]
            if len(cuts) > 1 or reach >= at:
                break
            reach *= 4
        stop = self.first(text, at)
        return cuts[-2] if len(cuts) > 1 else 0, len(text) if stop is None else stop

    def parts(self, text: str, size: int) -> list[str]:
        """Split the text into parts of about ``size`` characters, longer if no cut is nearby."""
        parts, start = [], 0
        while len(text) - start > size + size // 2:
            stop = self.first(text, start + size)
            if stop is None:
                break
            parts.append(text[start:stop])
            start = stop
        return [*parts, text[start:]]

    def encode(
        self,
        texts: Sequence[str],
        begins: bool,
        ids_of: Callable[[Tokenizer, Sequence[str]], list[list[int]]] = library_ids,
    ) -> list[list[int]]:
        """Return the ids of texts without special tokens; ``begins`` is False for texts after a cut.

        ``ids_of`` encodes texts with :attr:`backend` or :attr:`interior`.
        """
        if begins or self.interior is self.backend:
            return ids_of(self.backend, texts)
        starts = [self._late(text, begins) for text in texts]
        rows = ids_of(self.interior, [text[:at] for text, at in zip(texts, starts)])
        late = [index for index, at in enumerate(starts) if at < len(texts[index])]
        for index, ids in zip(late, ids_of(self.backend, [texts[index][starts[index] :] for index in late])):
            rows[index] = rows[index] + ids
        return rows

    def encode_with_starts(self, texts: Sequence[str], begins: Sequence[bool]) -> list[list[tuple[int, int]]]:
        """Return (id, first character) for each token of each text; see :meth:`encode`."""
        late = [self._late(text, begin) for text, begin in zip(texts, begins)]
        early = [text[:at] for text, at in zip(texts, late)]
        rest = [text[at:] for text, at in zip(texts, late)]
        rows = zip(
            self.interior.encode_batch(early, add_special_tokens=False),
            self.backend.encode_batch(rest, add_special_tokens=False),
            late,
        )
        return [
            [(token, start) for token, (start, _) in zip(first.ids, first.offsets)]
            + [(token, at + start) for token, (start, _) in zip(second.ids, second.offsets)]
            for first, second, at in rows
        ]

    def _late(self, text: str, begins: bool) -> int:
        """Return where ``backend`` takes over: after an added token, text is encoded as at the start."""
        if begins or self.interior is self.backend:
            return 0
        match = self._added.search(text)
        return len(text) if match is None else match.start()


def cut_rule(tokenizer: TextTokenizer) -> CutRule | NoCut:
    """Derive where texts of this tokenizer may be cut, from its ``tokenizer.json`` alone."""
    backend = tokenizer.backend
    whole = tokenizer.structure
    try:
        normal = read_normalizer(whole["normalizer"])
        splits = read_pre_tokenizer(whole["pre_tokenizer"], normal)
        restarts = normal.restarts or _adds_prefix(splits, whole)
        normal = replace(normal, restarts=restarts)
        kinds, avoid = _model_kinds(whole["model"], backend, splits)
        normalized = backend.normalizer.normalize_str if backend.normalizer is not None else None
        kinds, banned = read_added(whole["added_tokens"], normal, kinds, normalized)
        if not kinds & {SPACE, NEWLINE}:
            raise NotProven("an added token that may contain every kind of cut")
    except NotProven as problem:
        return NoCut(f"cuts are not proven for {problem}")
    if restarts or normal.strips:
        kinds &= {SPACE, NEWLINE}
    interior = json.dumps(interior_form(json.loads(backend.to_str()))) if restarts else None
    contents = sorted((token["content"] for token in whole["added_tokens"]), key=len, reverse=True)
    return CutRule(
        backend=backend,
        interior=backend if interior is None else Tokenizer.from_str(interior),
        margin=2,
        _cut=re.compile(_cut_pattern(splits, kinds, banned + avoid)),
        # Without added tokens, a pattern that never matches.
        _added=re.compile("|".join(map(re.escape, contents)) or r"(?!)"),
    )


def _cut_pattern(splits: Splits, kinds: Collection[str], banned: str) -> str:
    """Return a regular expression that matches, with zero width, at every place of ``kinds``."""
    but = f"(?![{re.escape(banned)}])" if banned else ""
    visible = f"[^{NOT_VISIBLE}]"
    before_newline = f"[{PLAIN}]" if splits.letter else visible
    before_line = rf"(?:{visible}|[\r\n])" if splits.runs else visible
    patterns = {
        SPACE: f"(?<={but}{visible})(?= )",
        NEWLINE: rf"(?<={but}{before_newline})(?=\n)",
        LINE: rf"(?<={before_line}\n)(?=[{PLAIN}])",
    }
    return "|".join(pattern for kind, pattern in patterns.items() if kind in kinds)


def _adds_prefix(splits: Splits, whole: Mapping[str, Any]) -> bool:
    steps = flat(whole["pre_tokenizer"], "pretokenizers")
    return splits.unsplit is not None and any(
        step["type"] == "Metaspace" and step["prepend_scheme"] != "never" for step in steps
    )


def interior_form(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokenizer's JSON without the steps that apply only to the start of a text."""
    steps = []
    for step in flat(whole["normalizer"], "normalizers"):
        if step["type"] != "Prepend":
            steps.append({**step, "strip_left": False} if step["type"] == "Strip" else step)
    edited = {**whole, "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None}
    before = whole["pre_tokenizer"]
    if before is not None and before["type"] == "Metaspace":
        edited["pre_tokenizer"] = {**before, "prepend_scheme": "never"}
    return edited


def _model_kinds(model: Mapping[str, Any], backend: Tokenizer, splits: Splits) -> tuple[frozenset[str], str]:
    """Return (kinds of places that the model allows, characters that must not precede them)."""
    if model.get("dropout"):
        raise NotProven("a BPE model with dropout")
    if splits.unsplit is None:
        return splits.kinds, ""
    if model["type"] != "BPE":
        raise NotProven(f"the model {model['type']} on unsplit text")
    for name in ("continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"):
        if model.get(name):
            raise NotProven(f"the model's {name} on unsplit text")
    vocab = backend.get_vocab(with_added_tokens=False)
    complete = all_bytes(model, vocab)
    if model["unk_token"] is None and not complete:  # dropping a character would join its neighbours
        raise NotProven("a BPE model that drops unknown characters of unsplit text")
    # Without a symbol of its own, a newline may be fused with unknown characters.
    newline = "\n" if "\n" in vocab else "<0x0A>" if complete else ""
    kinds, problems = set(), []
    for kind, symbol in ((SPACE, splits.unsplit), (NEWLINE, newline)):
        crossing = _crossing(vocab, symbol)
        if crossing is None:
            kinds.add(kind)
        else:
            problems.append(crossing)
    # The model cannot distinguish a literal "▁" (or other replacement of a space) from a space.
    if not kinds:
        raise NotProven("; ".join(problems))
    return frozenset(kinds), splits.unsplit.strip()


def all_bytes(model: Mapping[str, Any], vocab: Collection[str]) -> bool:
    """Return whether a BPE model has byte fallback with all 256 bytes, so no character is unknown."""
    return bool(model["byte_fallback"]) and all(f"<0x{byte:02X}>" in vocab for byte in range(256))


def _crossing(vocab: Collection[str], symbol: str) -> str | None:
    """Return why merges may cross a place before ``symbol``, or None if they cannot."""
    if symbol not in vocab:
        return f"the vocabulary, which lacks {symbol or 'the newline'!r}"
    inside = re.compile(
        rf"(?s)(?!{re.escape(symbol)}).{re.escape(symbol)}" if len(symbol) == 1 else f"(?s).{symbol}"
    )
    crossing = next((token for token in vocab if symbol in token and inside.search(token)), None)
    return None if crossing is None else f"the token {crossing!r}, which spans {symbol!r}"


def read_added(
    tokens: Iterable[Part], normal: Normal, kinds: frozenset[str], normalized: Callable[[str], str] | None
) -> tuple[frozenset[str], str]:
    """Return (kinds of places that no added token affects, characters that must not precede a cut).

    Added tokens are matched first, leftmost and longest. A cut is sound if no token spans it and the
    neighbours of each token stay the same: ``lstrip`` stops at the visible character left of the cut, and
    white space is not a letter for ``single_word``. ``rstrip`` would take the space after a token that ends
    at the cut, and text after a token is encoded as at the start, so the last character of such a token must
    not precede a cut.
    """
    banned: set[str] = set()
    for token in tokens:
        content, flags = token["content"], [name for name in _FLAGS if token[name]]
        folded = normalized is not None and token["normalized"]
        forms = {content, normalized(content)} if normalized is not None and folded else {content}
        white = any(letter.isspace() or letter in "▁ĠĊ" for form in forms for letter in form)
        awkward = normal.restarts and (folded or bool(set(flags) - {"rstrip"}))
        if awkward or (folded and (white or "rstrip" in flags)) or (white and flags):
            raise NotProven(
                f"the added token {content!r} ({', '.join([*flags, *(['normalized'] * folded)])})"
            )
        if flags:
            kinds &= {SPACE, NEWLINE}
        for form in forms:
            kinds -= {kind for kind, pattern in _SPANS.items() if pattern.search(form)}
        if normal.restarts or "rstrip" in flags:
            banned.add(content[-1])
    return kinds, "".join(sorted(banned))


_FLAGS = ("single_word", "lstrip", "rstrip")
_SPANS = {
    SPACE: re.compile(rf"[^{NOT_VISIBLE}] "),
    NEWLINE: re.compile(rf"[^{NOT_VISIBLE}]\n"),
    LINE: re.compile(rf"\n[{PLAIN}]"),
}
