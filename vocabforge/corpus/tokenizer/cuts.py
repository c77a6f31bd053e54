"""Where a text may be cut without changing one token.

A cut at ``p`` is proven when the ids of a text are those of ``text[:p]`` followed by those of ``text[p:]``, the
latter encoded as text behind other text (``interior``: no prefix, nothing stripped at its left). What is not on
the lists of :mod:`.cut_parts` means :class:`NoCut`. Two ways lead to a proof.

1. A pre-tokeniser splits at ``p`` whatever stands around: models treat pieces apart (but for a random dropout).
2. Nothing splits, and a BPE model sees the whole text, as in conversions from SentencePiece. A merge across the
   cut would make a token that holds a ``▁`` (a replaced space, the first character on the right) behind another
   character; if there is none, merges on the left happen in the same order with or without the right text.
   Unknown characters are not fused over ``▁``, which is a token. The same with a newline for ``▁``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tokenizers import Tokenizer, pre_tokenizers

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
    """Ids of texts by the tokenizers library, no special token added."""
    return [row.ids for row in backend.encode_batch_fast(list(texts), add_special_tokens=False)]


@dataclass(frozen=True)
class NoCut:
    """Texts of this tokenizer are never cut; ``reason`` names the component that is not proven."""

    reason: str
    cutter: ClassVar[None] = None


@dataclass(frozen=True, eq=False)
class CutRule:
    """Places where any text may be cut; whether one is, depends on ``margin`` characters on each side.

    Attributes:
        interior: encodes text behind a cut that holds no added token; the backend itself if all the same.
        places: the kinds of places, for messages.
    """

    backend: Tokenizer
    interior: Tokenizer
    places: frozenset[str]
    margin: int
    _cut: re.Pattern[str]
    _added: re.Pattern[str]

    @property
    def cutter(self) -> CutRule:
        """This rule. :class:`NoCut` has None here: ``rule.cutter`` is what cuts texts, if anything does."""
        return self

    def first(self, text: str, start: int = 0) -> int | None:
        """The smallest proven cut ``p`` with ``max(start, 1) <= p < len(text)``."""
        found = self._cut.search(text, max(start, 1))
        return None if found is None else found.start()

    def around(self, text: str, at: int) -> tuple[int, int]:
        """A stretch from the last proven cut but one up to ``at``, or the start, to the first cut from ``at`` on."""
        reach = 24
        while True:
            found = self._cut.finditer(text, max(1, at - reach), at + self.margin)
            cuts = [cut.start() for cut in found if cut.start() <= at]
            if len(cuts) > 1 or reach >= at:
                break
            reach *= 4
        stop = self.first(text, at)
        return cuts[-2] if len(cuts) > 1 else 0, len(text) if stop is None else stop

    def parts(self, text: str, size: int) -> list[str]:
        """The text in parts of about ``size`` characters, longer where nothing may be cut for a while."""
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
        """Ids of texts, no special token added; ``begins`` is False for texts that stand behind a cut.

        ``ids_of`` encodes as :attr:`backend` or :attr:`interior` does.
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
        """(id, first character) of each token of each text; see :meth:`encode`."""
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
        """Where the backend is right: behind an added token a text begins anew."""
        if begins or self.interior is self.backend:
            return 0
        found = self._added.search(text)
        return len(text) if found is None else found.start()


def cut_rule(tokenizer: TextTokenizer) -> CutRule | NoCut:
    """Where texts of this tokenizer may be cut, derived from its ``tokenizer.json`` alone."""
    backend = tokenizer.backend
    whole = tokenizer.structure
    try:
        normal = read_normalizer(whole["normalizer"])
        splits = read_pre_tokenizer(whole["pre_tokenizer"], normal)
        restarts = normal.restarts or _adds_prefix(splits, whole)
        normal = replace(normal, restarts=restarts)
        kinds, avoid = _model_kinds(whole["model"], backend, normal, splits)
        normalized = backend.normalizer.normalize_str if backend.normalizer is not None else None
        kinds, banned = read_added(whole["added_tokens"], normal, kinds, normalized)
        places = join_places(normal, splits, kinds, banned + avoid)
        if not places.kinds & {SPACE, NEWLINE}:
            raise NotProven("an added token that may hold any place to cut")
    except NotProven as problem:
        return NoCut(f"cuts are not proven for {problem}")
    return _rule(backend, whole, places, restarts)


def _rule(backend: Tokenizer, whole: Mapping[str, Any], places: Places, restarts: bool) -> CutRule:
    contents = sorted((token["content"] for token in whole["added_tokens"]), key=len, reverse=True)
    return CutRule(
        backend=backend,
        interior=Tokenizer.from_str(json.dumps(interior_form(json.loads(backend.to_str()))))
        if restarts
        else backend,
        places=places.kinds,
        margin=2,
        _cut=re.compile(places.pattern()),
        # No alternative at all never matches.
        _added=re.compile("|".join(map(re.escape, contents)) or r"(?!)"),
    )


def _adds_prefix(splits: Splits, whole: Mapping[str, Any]) -> bool:
    """Whether a Metaspace that does not split puts its mark before a text."""
    steps = flat(whole["pre_tokenizer"], "pretokenizers")
    return splits.unsplit is not None and any(
        step["type"] == "Metaspace" and step["prepend_scheme"] != "never" for step in steps
    )


def interior_form(whole: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer's JSON without what is done at the start of a text."""
    steps = []
    for step in flat(whole["normalizer"], "normalizers"):
        if step["type"] != "Prepend":
            steps.append({**step, "strip_left": False} if step["type"] == "Strip" else step)
    edited = {**whole, "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None}
    before = whole["pre_tokenizer"]
    if before is not None and before["type"] == "Metaspace":
        edited["pre_tokenizer"] = {**before, "prepend_scheme": "never"}
    return edited


def _model_kinds(
    model: Mapping[str, Any], backend: Tokenizer, normal: Normal, splits: Splits
) -> tuple[frozenset[str], str]:
    """(kinds of places the model allows, characters that must not stand left of them)."""
    if model.get("dropout"):
        raise NotProven("a BPE model with dropout")
    if splits.unsplit is None:
        return splits.kinds, ""
    if model["type"] != "BPE":
        raise NotProven(f"the model {model['type']} on unsplit text")
    for name in ("continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"):
        if model.get(name):
            raise NotProven(f"the model's {name} on unsplit text")
    if any(step["type"] in ("Nmt", "BertNormalizer") for step in normal.steps):
        raise NotProven("a normalizer that turns newlines into spaces, on unsplit text")
    vocab = backend.get_vocab(with_added_tokens=False)
    if not _keeps_all(model, vocab, splits.unsplit):
        raise NotProven("a BPE model that drops unknown characters of unsplit text")
    if len(normal.images) != 1 and not ("▁" in normal.images and splits.unsplit.get(" ") == "▁"):
        raise NotProven(f"the normalizer, which turns a space into {sorted(normal.images)}")
    space = next(iter(normal.images - {"▁"}), "▁")
    space = splits.unsplit.get(space, space)
    newline = _newline_symbol(model, vocab, splits.unsplit)
    kinds, problems = set(), []
    for kind, symbol in ((SPACE, space), (NEWLINE, newline)):
        crossing = _crossing(vocab, symbol)
        if crossing is None:
            kinds.add(kind)
        else:
            problems.append(crossing)
    # A written "▁" (or whatever a space becomes) looks like a space to the model.
    if not kinds:
        raise NotProven("; ".join(problems))
    return frozenset(kinds), "" if splits.unsplit.get(" ") == "Ġ" else space.strip()


def _keeps_all(model: Mapping[str, Any], vocab: Collection[str], unsplit: Mapping[str, str]) -> bool:
    """Whether every character becomes a symbol; one that vanished would bring its neighbours together."""
    if model["unk_token"] is not None or all_bytes(model, vocab):
        return True
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return unsplit.get(" ") == "Ġ" and all(letter in vocab for letter in alphabet)


def all_bytes(model: Mapping[str, Any], vocab: Collection[str]) -> bool:
    """Whether a BPE model falls back to bytes and has all of them, so that nothing is unknown."""
    return bool(model["byte_fallback"]) and all(f"<0x{byte:02X}>" in vocab for byte in range(256))


def _newline_symbol(model: Mapping[str, Any], vocab: Collection[str], unsplit: Mapping[str, str]) -> str:
    """What a newline is when merging starts; "" if it may be fused with unknown characters."""
    newline = unsplit.get("\n", "\n")
    if newline in vocab:
        return newline
    return "<0x0A>" if all_bytes(model, vocab) and newline == "\n" else ""


def _crossing(vocab: Collection[str], symbol: str) -> str | None:
    """Why merges may cross a place before ``symbol``, None if they cannot."""
    if symbol not in vocab:
        return f"the vocabulary, which lacks {symbol or 'the newline'!r}"
    inside = re.compile(
        rf"(?s)(?!{re.escape(symbol)}).{re.escape(symbol)}" if len(symbol) == 1 else f"(?s).{symbol}"
    )
    found = next((token for token in vocab if symbol in token and inside.search(token)), None)
    return None if found is None else f"the token {found!r}, which reaches over {symbol!r}"


@dataclass(frozen=True)
class Places:
    """The kinds of places in use, and the classes of characters left of a space, a newline, and the newline
    before a LINE place; ``strict`` asks for plain characters on both sides.
    """

    kinds: frozenset[str]
    space_left: str
    newline_left: str
    line_left: str
    strict: bool

    def pattern(self, kinds: Iterable[str] | None = None) -> str:
        """A regular expression that matches, without width, at every place of ``kinds``."""
        wanted = self.kinds if kinds is None else self.kinds & set(kinds)
        found = []
        for kind, left, white in ((SPACE, self.space_left, " "), (NEWLINE, self.newline_left, r"\n")):
            if kind in wanted and self.strict:
                found.append(f"(?<=[{PLAIN}]{left})(?={white}[{PLAIN}])")
            elif kind in wanted:
                found.append(f"(?<={left})(?={white})")
        if LINE in wanted:
            found.append(rf"(?<={self.line_left}\n)(?=[{PLAIN}])")
        return "|".join(found)


def join_places(normal: Normal, splits: Splits, kinds: frozenset[str], banned: str) -> Places:
    """The places where all components agree."""
    if normal.strict:
        kinds &= {SPACE} if splits.letter else {SPACE, NEWLINE}
    if normal.restarts or normal.strips:
        kinds &= {SPACE, NEWLINE}
    if NEWLINE in kinds and splits.letter and normal.strict:
        kinds -= {NEWLINE}
    but = f"(?![{re.escape(banned)}])" if banned else ""
    visible = f"{but}[^{NOT_VISIBLE}]" if not normal.strict else f"{but}[{PLAIN}]"
    return Places(
        kinds=kinds,
        space_left=visible,
        newline_left=f"{but}[{PLAIN}]" if splits.letter else visible,
        line_left=rf"(?:[^{NOT_VISIBLE}]|[\r\n])" if splits.runs else f"[^{NOT_VISIBLE}]",
        strict=normal.strict,
    )


def read_added(
    tokens: Iterable[Part], normal: Normal, kinds: frozenset[str], normalized: Callable[[str], str] | None
) -> tuple[frozenset[str], str]:
    """(kinds of places that no added token touches, characters that must not stand left of a cut).

    Added tokens are found first, leftmost and longest; a cut is sound if none reaches across it and each sees the
    same neighbours: ``lstrip`` ends at the visible character on the cut's left, white space is no letter for
    ``single_word``. ``rstrip`` would take the space behind a token that ends at the cut, and text behind a token
    begins anew: the last character of such a token is kept away from the cut.
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
            kinds -= _spanned(form)
        if normal.restarts or "rstrip" in flags:
            banned.add(content[-1])
    return kinds, "".join(sorted(banned))


_FLAGS = ("single_word", "lstrip", "rstrip")
_SPANS = {
    SPACE: re.compile(rf"[^{NOT_VISIBLE}] "),
    NEWLINE: re.compile(rf"[^{NOT_VISIBLE}]\n"),
    LINE: re.compile(rf"\n[{PLAIN}]"),
}


def _spanned(content: str) -> frozenset[str]:
    """Kinds of places that may lie inside a token."""
    return frozenset(kind for kind, pattern in _SPANS.items() if pattern.search(content))
