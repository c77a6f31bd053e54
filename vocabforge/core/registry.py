"""Extension tables: built-in rows and entry points of installed packages, resolved on use."""

from __future__ import annotations

import functools
import importlib
from collections import UserDict
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .errors import UsageError, VocabForgeError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

RowT = TypeVar("RowT")


class ExtensionTable(UserDict[str, RowT]):
    """Built-in rows by name, followed by the entry points of installed packages.

    Entry points are discovered when the table is first used; a package is imported when one of its names is
    looked up.

    Args:
        group: entry point group, such as ``vocabforge.heads``.
        rows: ``"module:attr"`` or the objects themselves. Entry points are resolved to their objects.

    Raises:
        UsageError: the name is defined by a package and by VocabForge, or by two packages.
        VocabForgeError: the package that defines the name cannot be imported.
    """

    def __init__(self, group: str, rows: Mapping[str, RowT]) -> None:
        self.group, self._rows = group, rows

    @functools.cached_property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        """Underlying dictionary of UserDict."""
        rows: dict[str, Any] = dict(self._rows)
        for point in _installed().select(group=self.group):
            rows[point.name] = _Entry(point, rows.get(point.name))
        return rows

    def __getitem__(self, name: str) -> RowT:
        row: Any = self.data[name]
        if not isinstance(row, _Entry):
            return row
        if row.other is not None:
            other = row.other.said if isinstance(row.other, _Entry) else "VocabForge itself"
            raise UsageError(
                f"the name {name!r} of {self.group} is taken twice",
                got=f"{row.said} and {other}",
                expected="unique names",
                remedy=f"uninstall {row.package}, or ask its authors for another name",
            )
        try:
            return row.point.load()
        except Exception as error:
            raise VocabForgeError(
                f"the package {row.package} cannot be imported",
                got=f"{type(error).__name__}: {error}",
                expected=f"{row.point.value}, for the name {name!r} of {self.group}",
                remedy=f"update or uninstall {row.package}",
            ) from error

    def usable(self) -> Iterator[str]:
        """Yield the names that can be looked up; report the errors of the others once."""
        for name in self:
            try:
                self[name]
            except VocabForgeError as error:
                _say_once(error.render())
            else:
                yield name


class _Entry(NamedTuple):
    point: EntryPoint
    other: Any  # the existing row with the same name

    @property
    def package(self) -> str:
        dist = self.point.dist
        return self.point.value.partition(":")[0] if dist is None else dist.name

    @property
    def said(self) -> str:
        return f"the package {self.package} ({self.point.value})"


@functools.cache
def _say_once(text: str) -> None:
    from .console import say

    say(text)


@functools.cache
def _installed() -> Any:  # one search for all tables
    from importlib.metadata import entry_points

    return entry_points()


def load_attribute(target: str) -> Any:
    """Import ``"module:attr"`` and return the attribute."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def resolve(table: Mapping[str, Any], name: str, what: str) -> Any:
    """Return the object listed under ``name``.

    Raises:
        UsageError: no such row; lists the existing rows.
    """
    check_known(name, table, what)
    row = table[name]
    return load_attribute(row) if isinstance(row, str) else row


def check_known(name: str, known: Collection[str], what: str, *, source: object = None) -> None:
    """Check that a name is known; suggest a similar one if it is not.

    Args:
        what: kind of object, for the message.
        source: option that the name was given to.

    Raises:
        UsageError: unknown name; lists the known ones.
    """
    if name in known:
        return
    ending = next((candidate for candidate in known if name and candidate.endswith(name)), None)
    raise UsageError(
        f"there is no {what} of this name",
        got=name,
        expected=", ".join(known),
        source=source,
        remedy=f"did you mean {ending}?" if ending else did_you_mean(name, known),
    )
