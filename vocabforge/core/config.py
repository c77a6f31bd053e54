"""Strict configuration: values come from YAML, the command line overrides them, unknown keys are errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
)

from .errors import ConfigError, closest, did_you_mean
from .hub import hub_name, model_folder
from .values import parse_count, parse_size, yaml_pair

Positive = Annotated[int, Field(gt=0)]
Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]  # number of token ids: 16384 or 16k
Count = Annotated[int, BeforeValidator(parse_count), Field(gt=0)]  # 1B, 500M, 10_000 or 1e9
_RECORDED = PlainSerializer(hub_name, return_type=str, when_used="json")
# A folder or a Hub name. For a tokenizer, weights are not downloaded.
ModelPath = Annotated[Path, AfterValidator(model_folder), _RECORDED]
TokenizerPath = Annotated[Path, AfterValidator(partial(model_folder, weights=False)), _RECORDED]


STRICT = "Fail at the first unreadable line or row with an unknown key, instead of counting them."
"""Help of the ``strict`` option, shared by all commands that read rows."""
CONTENT_FORMAT = (
    "How the chat template gets the contents of turns: as **text**, as lists of **parts** (multimodal models), or as "
    "short trial conversations show (**auto**)."
)
"""Help of the ``content_format`` option."""
RAY = (
    "Work on a Ray cluster: `auto` (the one that runs here, or RAY_ADDRESS), `HOST:PORT`, `ray://HOST:PORT`, or "
    "`local` (started for this command)."
)
"""Help of the ``ray`` option, shared by all commands that have it."""


RECORD = ConfigDict(extra="forbid", strict=True)  # of pydantic dataclasses, see core/records.py


class StrictModel(BaseModel):
    """Base of every configuration section: rejects unknown keys, immutable once loaded.

    Attributes:
        removed: keys of earlier versions by dotted path, with what to do instead.
    """

    removed: ClassVar[Mapping[str, str]] = {}
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


ConfigT = TypeVar("ConfigT", bound=StrictModel)
_PACKAGE = Path(__file__).resolve().parents[1]


def option(
    default: Any,
    text: str,
    metavar: str | None = None,
    *,
    short: str | None = None,
    flag: str | None = None,
    many: bool = False,
    positional: bool = False,
    extra: Mapping[str, Any] | None = None,
    **bounds: Any,
) -> Any:
    """Declare a field of a request that is also an option of its command; default ``...`` makes it required.

    Args:
        text: description: the option's help, and the comment of a recipe's key.
        metavar: placeholder of the value in the help.
        short: additional one-letter name, such as ``-c``.
        flag: name of the option, if it differs from the field's.
        many: the field is a ``tuple[T, ...]``, and the option may be repeated.
        positional: a positional argument; several for a ``tuple[T, ...]``.
        extra: further facts of the field, kept in its ``json_schema_extra``.
        bounds: further arguments of pydantic's ``Field``, such as ``ge``.
    """
    facts: dict[str, Any] = {"metavar": metavar, "short": short, "flag": flag, "many": many}
    facts |= {"positional": positional, **(extra or {})}
    return Field(default, description=text, json_schema_extra=facts, **bounds)


class ResultOptions(StrictModel):
    """Options of commands that write an artefact."""

    as_json: bool = option(False, "Print the result as JSON on stdout.", flag="--json")
    overwrite: bool = option(False, "Replace an existing output.")


class _UniqueKeyLoader(yaml.SafeLoader):
    """Safe loader that rejects duplicate keys in a mapping (YAML forbids them, PyYAML keeps the last)."""

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        _refuse_repeated_keys(node, set())
        return node


def _refuse_repeated_keys(node: Any, visited: set[int]) -> None:
    """Walk the document before merge keys (``<<``) are expanded, because merged keys may be repeated."""
    if node is None or isinstance(node, yaml.ScalarNode) or id(node) in visited:
        return
    visited.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeated_keys(item, visited)
        return
    seen = set()
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            seen.add((key.tag, key.value))
        _refuse_repeated_keys(value, visited)


def shipped(folder: str) -> Path:
    """Return the path of ``recipes`` or ``kernels``: package data in a wheel, else the repository folder."""
    packaged = _PACKAGE / folder
    return packaged if packaged.is_dir() else _PACKAGE.parent / folder


def recipe_names() -> dict[str, Path]:
    """Map the ``GROUP/NAME`` of every recipe and launch configuration to its file."""
    root = shipped("recipes")
    return {path.relative_to(root).as_posix()[: -len(".yaml")]: path for path in sorted(root.rglob("*.yaml"))}


def recipe_path(given: Path) -> Path:
    """Resolve ``given`` to a file: a path, or a recipe name with or without its group.

    Raises:
        ConfigError: neither a file nor a recipe of this name exists.
    """
    if given.is_file() or given.is_absolute() or given.suffix == ".yaml":
        return given  # the reader reports a missing file
    named = recipe_names()
    text = given.as_posix()
    for name, file in named.items():
        if text in (name, name.rpartition("/")[2]):
            return file
    hint = did_you_mean(text, [name.rpartition("/")[2] for name in named])
    raise ConfigError(
        "no such file or recipe", got=text, remedy=hint or "run `vocabforge recipes` to list the recipes"
    )


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping from a file or from a shipped recipe given by name.

    Raises:
        ConfigError: the file is missing, not YAML, or not a mapping.
    """
    path = recipe_path(path)
    try:
        value = _parse_yaml(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        got = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            "cannot read the configuration", got=got, source=path, remedy="check the path"
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an impossible date
        raise ConfigError(
            "the configuration is not valid YAML",
            got=error,
            source=path,
            expected="key: value lines",
            remedy="indent with spaces, not tabs" if "'\\t'" in str(error) else None,
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(
            "the configuration is not a mapping",
            got="an empty file" if value is None else type(value).__name__,
            expected="key: value lines",
            source=path,
            remedy="vocabforge recipes shows complete ones",
        )
    return value


def _parse_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_UniqueKeyLoader)


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply ``key.sub=value`` overrides to a nested mapping in place; values are parsed as YAML.

    Raises:
        ConfigError: an override has no ``=``, or its path goes through a value that is not a section.
    """
    for item in overrides:
        key, value = yaml_pair(item, expected="key.sub=value", parse=_parse_yaml)
        if not all(key.split(".")):
            raise ConfigError("the configuration has no such key", got=repr(item), expected="key.sub=value")
        *parents, leaf = key.split(".")
        node = values
        for parent in parents:
            if node.get(parent) is None:  # absent or an empty section
                node[parent] = {}
            node = node[parent]
            if not isinstance(node, dict):
                raise ConfigError(
                    "an override runs through a plain value",
                    got=repr(item),
                    expected="a path through sections",
                    source=f"the configuration's {parent!r} is not a section",
                )
        node[leaf] = value
    return values


def load_config(model: type[ConfigT], path: Path, overrides: Sequence[str] = ()) -> ConfigT:
    """Load a YAML file into ``model`` with overrides applied.

    Raises:
        ConfigError: lists every problem with its key, the value found and a suggestion.
    """
    return parse_config(model, apply_overrides(read_yaml(path), overrides), source=path)


def parse_config(model: type[ConfigT], values: Mapping[str, Any], *, source: object) -> ConfigT:
    """Validate a mapping against ``model``; see :func:`load_config`.

    Raises:
        ConfigError: lists every problem.
    """
    try:
        made = model.model_validate(dict(values))
        lines = list(_truths(values, made, ""))
        cause = None
    except ValidationError as error:
        lines, cause = list(_explain(model, error)), error
    if lines:
        count = f"{len(lines)} problem{'s' if len(lines) > 1 else ''}"
        raise ConfigError(
            f"the configuration has {count}:\n  - " + "\n  - ".join(lines),
            source=source,
            remedy="fix the file or the override; --plan --json shows the resolved configuration",
        ) from cause
    return made


def _truths(given: Any, made: Any, where: str) -> Iterator[str]:
    """Yield a problem for every boolean that was converted to a number.

    Pydantic rejects them only in strict mode, which would also reject strings (YAML reads ``1e-3`` as one).
    """
    if isinstance(given, bool) and not isinstance(made, bool) and isinstance(made, (int, float)):
        yield f"{where}: {given} is a boolean, not a number"
    elif isinstance(given, Mapping):
        for key, value in given.items():
            held = made.get(key) if isinstance(made, Mapping) else getattr(made, str(key), None)
            yield from _truths(value, held, f"{where}.{key}" if where else str(key))
    elif isinstance(given, (list, tuple)) and isinstance(made, (list, tuple)):
        for at, (value, held) in enumerate(zip(given, made)):
            yield from _truths(value, held, f"{where}.{at}")


def _explain(model: type[StrictModel], error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"])
        if where in model.removed:
            yield f"the key {where!r} was removed: {model.removed[where]}"
        elif problem["type"] == "extra_forbidden":
            known = _fields_at(model, [str(part) for part in problem["loc"][:-1]])
            yield f"unknown key {where!r}; {_meant(model, str(problem['loc'][-1]), known)}"
        elif problem["type"] == "missing":
            yield f"missing key {where!r}"
        elif problem["type"] in ("list_type", "tuple_type"):
            value = problem.get("input")
            example = f"[{value}]" if isinstance(value, str) else "[a, b]"
            yield f"{where}: expected a list such as {example} (got {value!r})"
        elif problem["type"] == "value_error":  # raised by our own validators, which include the value
            yield f"{where or 'configuration'}: {problem['msg'].removeprefix('Value error, ')}"
        else:
            yield f"{where}: {problem['msg']} (got {problem.get('input')!r})"


def _meant(model: type[BaseModel], name: str, known: Sequence[str]) -> str:
    """Suggest a replacement for an unknown key: same name elsewhere, similar name here, or all names here."""
    elsewhere = [path for path in _paths(model, "") if path.rpartition(".")[2] == name]
    if 0 < len(elsewhere) <= 3:
        return f"did you mean {' or '.join(map(repr, elsewhere))}?"
    close = closest(name, known)
    return f"did you mean {close!r}?" if close else f"known keys: {', '.join(sorted(known))}"


def _paths(model: type[BaseModel], prefix: str, above: tuple[type[BaseModel], ...] = ()) -> Iterator[str]:
    """Yield the dotted paths of all keys; recursive sections are expanded once."""
    for name, field in model.model_fields.items():
        yield prefix + name
        for section in _sections(field.annotation):
            if section not in above:
                yield from _paths(section, f"{prefix}{name}.", (*above, section))


def _fields_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Return the field names of the section at ``path``, resolving Optional, unions, lists and mappings."""
    models = [model]
    for part in path:
        # pydantic names union members by class
        named = [section for section in models if section.__name__ == part]
        fields = [section.model_fields[part] for section in models if part in section.model_fields]
        sections = [section for field in fields for section in _sections(field.annotation)]
        models = named or sections or models  # list index or mapping key: same section
    return list(dict.fromkeys(name for section in models for name in section.model_fields))


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)
