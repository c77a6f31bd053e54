"""Parsers for values on the command line and in recipes: sizes, ``KEY=VALUE``, ``LABEL=DIR``."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import yaml

from .errors import ConfigError, UsageError
from .hub import model_name

Backend = Literal["auto", "lean", "transformers"]  # implementation of the target
TextUnit = Literal["file", "line", "paragraph"]  # of a text file that forms one document
LEAST_WINDOW = 64  # of a drafter's sliding window: above the depth of every usual draft


def parse_size(value: Any) -> Any:
    """Parse a size: ``16384`` or ``16k`` (times 1,024). Values other than strings are returned unchanged.

    Raises:
        ValueError: the string is not a size.
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+)([kK]?)", value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not a size: write 16384 or 16k")
    return int(match[1]) * (1024 if match[2] else 1)


def parse_count(value: Any) -> Any:
    """Parse a number of tokens: ``1B``, ``500M``, ``20k``, ``10_000`` or ``1e9`` (decimal multiples).

    Values other than strings are returned unchanged.

    Raises:
        ValueError: the string is not a whole number.
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d[\d_]*(?:\.\d+)?(?:e\+?\d{1,2})?)([kmbt]?)", value.strip().lower())
    number = Decimal(match[1]).scaleb(3 * " kmbt".index(match[2] or " ")) if match else Decimal("NaN")
    if number.is_nan() or number != int(number):
        raise ValueError(f"{value!r} is not a number of tokens: write 1B, 500M, 10_000 or 1e9")
    return int(number)


def words_in(texts: str | Iterable[str] | None) -> tuple[str, ...]:
    """Split the comma-separated values of a repeatable option; None gives an empty tuple."""
    whole = [texts] if isinstance(texts, str) else texts or ()
    return tuple(part.strip() for text in whole for part in text.split(",") if part.strip())


def sizes_in(option: str, texts: str | Iterable[str] | None, *, least: int = 0) -> tuple[int, ...]:
    """Parse the comma-separated sizes of a repeatable option; None gives an empty tuple.

    Raises:
        UsageError: a value is not a size or is below ``least``.
    """
    words = words_in(texts)
    try:
        sizes = tuple(parse_size(word) for word in words)
        if all(size >= least for size in sizes):
            return sizes
        problem = ", ".join(words)
    except ValueError as error:
        problem = str(error)
    raise UsageError(
        "cannot read a list of sizes", got=problem, expected="16384, 16k or 8k,16k", source=option
    )


def split_pair(item: str, *, expected: str, source: str | None = None) -> tuple[str, str]:
    """Split ``KEY=VALUE`` into key and text.

    Raises:
        ConfigError: no ``=`` or no key.
    """
    key, separator, text = item.partition("=")
    if not separator or not key.strip():
        raise ConfigError("this is no KEY=VALUE", got=repr(item), expected=expected, source=source)
    return key.strip(), text


def split_weight(text: str, option: str, known: Collection[str] = ()) -> tuple[str, float | None]:
    """Split ``X=0.7`` into (X, 0.7) and ``X`` into (X, None).

    ``known`` names and existing paths are never split.

    Raises:
        UsageError: the weight is not a number.
    """
    head, separator, tail = text.rpartition("=")
    if not separator or text in known or Path(text).exists():
        return text, None
    try:
        return head, float(tail)
    except ValueError as error:
        raise UsageError(
            "the weight is not a number", got=text, source=option, expected=f"{option} {head}=0.7"
        ) from error


def yaml_pair(
    item: str, *, expected: str, source: str | None = None, parse: Callable[[str], Any] = yaml.safe_load
) -> tuple[str, Any]:
    """Split ``KEY=VALUE`` and parse the value as YAML (``false`` is a boolean, ``20`` a number).

    Raises:
        ConfigError: no ``=``, no key, or a value that is not valid YAML.
    """
    key, text = split_pair(item, expected=expected, source=source)
    try:
        return key, parse(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(
            "cannot read a value", got=f"{item!r}: {error}", expected="a YAML value", source=source or key
        ) from error


def yaml_pairs(items: Iterable[str] | None, option: str, form: str = "KEY=VALUE") -> dict[str, Any]:
    """Parse the values of a repeatable ``KEY=VALUE`` option."""
    return dict(yaml_pair(item, expected=f"{option} {form}", source=option) for item in items or ())


def labelled(text: str) -> tuple[str, Path]:
    """Split ``LABEL=DIR`` into label and folder.

    A plain ``DIR`` is labelled with the folder name, or with the run's name if the folder is its ``drafter``.

    Raises:
        UsageError: the label is not one printable line.
    """
    label, separator, folder = text.partition("=")
    if separator and label and not Path(text).exists():
        if not label.isprintable():  # labels become names of files, rows and columns
            raise UsageError("this cannot be a label", got=repr(label), expected="LABEL=DIR on one line")
        return label, Path(folder)
    whole = Path(text).resolve()
    return (whole.parent.name if whole.name == "drafter" else model_name(whole)), Path(text)
