"""Which places of a text are cuts, once its tokenizer's parts are read, and what added tokens forbid."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .cut_parts import LINE, NEWLINE, SPACE, STOP, Normal, NotProven, Part, Splits
from .cut_patterns import EAST_ASIAN, NOT_VISIBLE, PLAIN, STOPS


@dataclass(frozen=True)
class Places:
    """The kinds of places in use, and the character classes (insides of ``[...]``) beside them.

    Attributes:
        kinds: see :data:`ALL_KINDS`.
        space_left: what stands left of a space.
        newline_left: what stands left of a newline.
        line_left: what stands left of the newline behind which a LINE place is.
        strict: two plain characters on the left and one behind the space or newline are asked for.
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
        if STOP in wanted:
            found.append(f"(?<=[{EAST_ASIAN}])(?=[{STOPS}])")
        return "|".join(found)


def join_places(normal: Normal, splits: Splits, kinds: frozenset[str], banned: str) -> Places:
    """The places where all components agree.

    Args:
        normal: of the normaliser.
        splits: of the pre-tokeniser.
        kinds: kinds that are left.
        banned: characters that must not stand left of a space or newline.
    """
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

    Added tokens are found first, leftmost and longest; a cut is sound if none reaches across it and each
    sees the same neighbours. ``lstrip`` takes white space up to a visible character, which the cut has on
    its left, ``single_word`` asks for a neighbour that is no letter: white space is none. ``rstrip`` would
    take the space behind a token that ends at the cut, and text behind a token begins anew: then the last
    character of such a token is kept away from the cut.

    Args:
        tokens: the tokenizer's ``added_tokens``.
        normal: of the normaliser.
        kinds: kinds of places so far.
        normalized: the backend's normaliser, None without one.

    Raises:
        NotProven: a token for which this does not hold.
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
    STOP: re.compile(f"[{EAST_ASIAN}][{STOPS}]"),
}


def _spanned(content: str) -> frozenset[str]:
    """Kinds of places that may lie inside a token."""
    return frozenset(kind for kind, pattern in _SPANS.items() if pattern.search(content))
