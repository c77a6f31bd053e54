"""Rules for where a tokenizer's normaliser, pre-tokeniser and added tokens allow a text to be cut.

Each supported component is listed with the reason why cuts are safe; any other component raises
``NotProven``. A cut is written ``x|c``: ``x`` ends the left part, ``c`` begins the right part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
QWEN35 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _SPACES
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = r"[^\r\n\p{L}\p{N}]?"
_SLASH = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
O200K = (
    f"{_WORD}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_WORD}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    r"|\p{N}{1,3}" + _SLASH
)
TEKKEN = f"{_WORD}{_UPPER}*{_LOWER}+|{_WORD}{_UPPER}+{_LOWER}*" r"|\p{N}" + _SLASH
_ASCII_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+".replace('\\"', '"')
# The published file contains literal carriage returns and line feeds, not their escapes.
DEEPSEEK = (
    _ASCII_WORD
    + "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

# In these patterns a run of punctuation includes the newlines after it.
TAIL_PATTERNS = frozenset(
    {LLAMA3, QWEN2, QWEN35, O200K, TEKKEN, DEEPSEEK, DEEPSEEK.replace("\r", r"\r").replace("\n", r"\n")}
)
# The first splits of the DeepSeek tokenizers.
DEEPSEEK_SPLITS = (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+")
# These match digits or East Asian letters only: never a space, a newline or a full stop.
LOCAL_PATTERNS = frozenset({r"\p{N}", r"\d", "[0-9]", "[0-9][0-9][0-9]", *DEEPSEEK_SPLITS})

# Content of a character class. East Asian letters: kana, ideographs, Hangul syllables.
EAST_ASIAN = "\u3041-\u3094\u30a1-\u30fa\u3400-\u4db5\u4e00-\u9fa5\uac00-\ud7a3"
# Letters and digits that were assigned long ago and form a grapheme alone. Under NFC and NFKC each still ends
# with a letter or digit, and no known normaliser removes it or turns it into a space.
# Excluded: letters such as DEVANAGARI QA, whose NFC ends in a mark, and L WITH MIDDLE DOT.
PLAIN = (
    "0-9A-Za-zÀ-ÖØ-öø-\u013e\u0141-ſΑ-ΡΣ-Ωά-ώЀ-џԱ-Ֆա-ֆא-ת"
    "\u0621-\u063a\u0641-\u064a\u0904-\u0939\u0e01-\u0e30\u10d0-\u10f0" + EAST_ASIAN
)
# Excluded from visible characters: white space by any library's definition, control and format characters.
NOT_VISIBLE = (
    r"\x00-\x20\x7f-\xa0\xad\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufff0-\uffff"
)


Part = Mapping[str, Any]

# Kinds of cuts. SPACE: before a space. NEWLINE: before a newline. LINE: after a newline, before a letter.
SPACE, NEWLINE, LINE = "space", "newline", "line"
ALL_KINDS = frozenset({SPACE, NEWLINE, LINE})


class NotProven(Exception):
    """Error for a component whose behaviour at a cut is not proven; the message names it."""


@dataclass(frozen=True)
class Normal:
    """Behaviour of the normaliser at a cut.

    Attributes:
        restarts: the start of a text is treated differently (a prefix is added, spaces are stripped).
        strips: white space at the end of a text is removed.
        space: what a space becomes.
    """

    restarts: bool
    strips: bool
    space: str


@dataclass(frozen=True)
class Splits:
    """Places at which the pre-tokeniser always splits.

    Attributes:
        kinds: kinds of these places; empty if the model receives the text unsplit.
        letter: the character before a newline must be a letter or digit.
        runs: a LINE place may follow several newlines.
        unsplit: what a space is in unsplit text; None if the text is split.
    """

    kinds: frozenset[str]
    letter: bool = False
    runs: bool = False
    unsplit: str | None = None


def flat(part: Part | None, key: str) -> tuple[Part, ...]:
    """Return the components of a normaliser or pre-tokeniser, with nested Sequences flattened."""
    if part is None:
        return ()
    if part["type"] == "Sequence":
        return tuple(step for inner in part[key] for step in flat(inner, key))
    return (part,)


def read_normalizer(part: Part | None) -> Normal:
    """Return the behaviour of a normaliser at a cut.

    Each known normaliser changes both sides of a cut as it would change the two texts separately. NFC: a
    space or newline is a starter that composes with nothing. Strip and Prepend change only the ends of a
    text. Replace: no match of one space, or of a run of spaces from its start on, crosses a cut.

    Raises:
        NotProven: another normaliser. Lowercase and NFKC, for example, may remove a character beside a cut.
    """
    restarts = strips = False
    space = " "
    for step in flat(part, "normalizers"):
        kind = step["type"]
        if kind == "Strip":
            restarts = restarts or bool(step["strip_left"])
            strips = strips or bool(step["strip_right"])
        elif kind == "Prepend":
            restarts = True
        elif kind == "Replace":
            pattern, content = step["pattern"], step["content"]
            if pattern == {"String": " "} and len(content) == 1:
                space = content if space == " " else space
            elif (pattern, content) != ({"Regex": " {2,}"}, " "):
                raise NotProven(f"the normalizer Replace {dict(pattern)} by {content!r}")
        elif kind != "NFC":
            raise NotProven(f"the normalizer {kind}")
    return Normal(restarts, strips, space)


def read_pre_tokenizer(part: Part | None, normal: Normal) -> Splits:
    """Return the places where a pre-tokeniser splits in any context.

    Steps before the splitting step must give the same result if the text is cut there; later steps receive
    both sides as separate pieces.

    Raises:
        NotProven: a step that is not on the list.
    """
    steps = flat(part, "pretokenizers")
    if (unsplit := _unsplit(steps, normal)) is not None:
        return Splits(frozenset(), unsplit=unsplit)
    splitting: Splits | None = None
    for step in steps:
        splits = None if splitting else _splitting(step, normal)
        later = splitting is not None and step["type"] in ("ByteLevel", "Split")
        harmless = step["type"] in ("Digits", "Punctuation") or _pattern(step) in LOCAL_PATTERNS
        if splits is None and not (later or harmless):  # the harmless ones never match a space or newline
            raise NotProven(_named(step))
        splitting = splitting or splits
    if splitting is None:
        raise NotProven("the pre-tokenizer, which has no known split points")
    return splitting


def _unsplit(steps: tuple[Part, ...], normal: Normal) -> str | None:
    """Return what a space is to the model if text reaches it unsplit, else None."""
    if not steps:
        return normal.space
    step = steps[0]
    if len(steps) == 1 and step["type"] == "Metaspace" and not step["split"]:
        return str(step["replacement"]) if normal.space == " " else normal.space
    if (
        len(steps) == 1
        and step["type"] == "Split"
        and step["pattern"] == {"String": " "}
        and normal.space != " "
    ):
        return normal.space  # as in Gemma: no space is left after normalisation
    return None


def _pattern(step: Part) -> str | None:
    if step["type"] != "Split" or (step["behavior"], step["invert"]) not in (
        ("Isolated", False),
        ("Removed", True),
    ):
        return None
    pattern: str | None = step["pattern"].get("Regex")
    return pattern


def _splitting(step: Part, normal: Normal) -> Splits | None:
    """Return the places where this step splits, or None if it may not split.

    GPT-2's pattern (built into ByteLevel): no alternative matches a space or newline after a visible
    character, so a match begins there. A match also begins after a single newline, which ``\\s+`` always
    takes. Patterns with a tail: ``[^\\s\\p{L}\\p{N}]+[\\r\\n]*`` matches a newline after punctuation, so a
    newline must follow a letter or digit; ``\\s*[\\r\\n]+`` ends at the last newline of a run.
    """
    pattern = _pattern(step)
    if pattern == GPT2 or (step["type"] == "ByteLevel" and step["use_regex"]):
        # A prefix is added to any text that does not begin with a space.
        prefix = step["type"] == "ByteLevel" and step["add_prefix_space"]
        splits = Splits(frozenset({SPACE}) if prefix else ALL_KINDS)
    elif pattern in TAIL_PATTERNS:
        splits = Splits(ALL_KINDS, letter=True, runs=True)
    else:
        return None
    if normal.space != " ":
        raise NotProven(f"the normalizer, which turns a space into {normal.space!r}")
    return splits


def _named(step: Part) -> str:
    return f"the pre-tokenizer {step['type']}" + (f" {step['pattern']}" if step["type"] == "Split" else "")
