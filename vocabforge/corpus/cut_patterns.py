"""Split patterns of published tokenizers, and the characters that the cut rules may rely on.

A pattern is known by its exact text; one character of difference makes it unknown, and nothing is cut.
None of them looks behind, so what they match from a place on depends on the text from there on alone.
"""

from __future__ import annotations

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
# The published file holds carriage return and line feed themselves, not their escapes.
DEEPSEEK = (
    _ASCII_WORD
    + "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

# In these a run of punctuation takes the newlines behind it.
TAIL_PATTERNS = frozenset(
    {LLAMA3, QWEN2, QWEN35, O200K, TEKKEN, DEEPSEEK, DEEPSEEK.replace("\r", r"\r").replace("\n", r"\n")}
)
# What the DeepSeek tokenizers split by first.
DEEPSEEK_SPLITS = (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+")
# These match digits or East Asian letters only: never a space, a newline or a full stop.
LOCAL_PATTERNS = frozenset({r"\p{N}", r"\d", "[0-9]", "[0-9][0-9][0-9]", *DEEPSEEK_SPLITS})

# Inside a regular expression's class. East Asian letters: kana, ideographs, Hangul syllables.
EAST_ASIAN = "\u3041-\u3094\u30a1-\u30fa\u3400-\u4db5\u4e00-\u9fa5\uac00-\ud7a3"
STOPS = "。、，！？；："
# Letters and digits, long assigned, alone in their grapheme. Each keeps a letter or digit at its end under
# NFC and NFKC and is never removed or turned into space by a known normaliser.
# Left out are letters such as DEVANAGARI QA, whose NFC ends in a mark, and L WITH MIDDLE DOT.
PLAIN = (
    "0-9A-Za-zÀ-ÖØ-öø-\u013e\u0141-ſΑ-ΡΣ-Ωά-ώЀ-џԱ-Ֆա-ֆא-ת"
    "\u0621-\u063a\u0641-\u064a\u0904-\u0939\u0e01-\u0e30\u10d0-\u10f0" + EAST_ASIAN
)
# Never white space, for any library's idea of it; controls and format characters are left out as well.
NOT_VISIBLE = (
    r"\x00-\x20\x7f-\xa0\xad\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufff0-\uffff"
)
