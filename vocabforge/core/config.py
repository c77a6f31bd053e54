"""Strict configuration: YAML supplies values, the command line overrides, unknown keys are errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import ConfigError


class StrictModel(BaseModel):
    """Base of every configuration section: unknown keys are refused, values are fixed once loaded."""

    model_config = ConfigDict(extra="forbid", frozen=True)


ConfigT = TypeVar("ConfigT", bound=StrictModel)


class _UniqueKeyLoader(yaml.SafeLoader):
    """Safe loader that refuses a key given twice in one mapping."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=deep)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        ConfigError: the file is missing, not YAML, or not a mapping.
    """
    try:
        value = yaml.load(path.read_text("utf-8"), Loader=_UniqueKeyLoader)  # noqa: S506 (subclass of SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("cannot read the configuration", got=error, source=path) from error
    except yaml.YAMLError as error:
        raise ConfigError("the configuration is not valid YAML", got=error, source=path) from error
    if not isinstance(value, dict):
        raise ConfigError(
            "the configuration is not a mapping", got=type(value).__name__, expected="key: value lines", source=path
        )
    return value


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply ``key.sub=value`` overrides (values are parsed as YAML) to a nested mapping, in place.

    Raises:
        ConfigError: an override without ``=``, or a path that runs through a plain value.
    """
    for item in overrides:
        key, separator, text = item.partition("=")
        if not separator or not key:
            raise ConfigError("cannot read an override", got=repr(item), expected="key.sub=value")
        *parents, leaf = key.split(".")
        node = values
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError("an override runs through a plain value", got=repr(item), source=parent)
        try:
            node[leaf] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError("cannot read an override's value", got=repr(item), source=error) from error
    return values


def load_config(model: type[ConfigT], path: Path, overrides: Sequence[str] = ()) -> ConfigT:
    """Load a YAML file into ``model`` with overrides applied.

    Raises:
        ConfigError: every problem found, each with its key, what was got and a suggestion.
    """
    return parse_config(model, apply_overrides(read_yaml(path), overrides), source=path)


def parse_config(model: type[ConfigT], values: Mapping[str, Any], *, source: object) -> ConfigT:
    """Validate a mapping against ``model``; see :func:`load_config`."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        lines = list(_explain(model, error))
        raise ConfigError(
            f"the configuration has {len(lines)} problem{'s' if len(lines) > 1 else ''}:\n  - " + "\n  - ".join(lines),
            source=source,
            remedy="mend the file or the override; --plan shows the resolved configuration",
        ) from error


def _explain(model: type[StrictModel], error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = _fields_at(model, [str(part) for part in problem["loc"][:-1]])
            close = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(sorted(known))}"
            yield f"unknown key {where!r}; {hint}"
        elif problem["type"] == "missing":
            yield f"missing key {where!r}"
        else:
            yield f"{where}: {problem['msg']} (got {problem.get('input')!r})"


def _fields_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Field names of the section at ``path``; looks through Optional, unions and lists."""
    for part in path:
        field = model.model_fields.get(part)
        section = next(_sections(field.annotation), None) if field else None
        if section is None:
            continue  # a list index or a union tag: stay at this section
        model = section
    return list(model.model_fields)


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)
