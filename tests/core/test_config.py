"""Configuration: every mistake is found, named by its key, and answered with a suggestion."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import pytest
from pydantic import Field, ValidationError, field_validator, model_validator

from vocabforge.core.config import StrictModel, apply_overrides, load_config, parse_config, read_yaml
from vocabforge.core.errors import ConfigError


class Inner(StrictModel):
    depth: int = Field(3, gt=0)
    rate: float = 0.1
    name: str = "a"


class Other(StrictModel):
    width: int = 1


class Section(StrictModel):
    inner: Inner = Inner()
    mode: Literal["auto", "off"] = "auto"
    shape: tuple[int, int] = (1, 2)

    @field_validator("mode")
    @classmethod
    def _never_off(cls, value: str) -> str:
        if value == "off":
            raise ValueError("off is not for tests")
        return value


class Whole(StrictModel):
    path: Path
    section: Section = Section()
    maybe: Inner | None = None
    many: list[Inner] = Field(default_factory=list)
    by_name: dict[str, Inner] = Field(default_factory=dict)
    either: Inner | Other = Inner()

    @model_validator(mode="after")
    def _no_slash(self) -> Whole:
        if str(self.path) == "/":
            raise ValueError("path must not be /")
        return self


def config(tmp_path: Path, text: str, *overrides: str) -> Whole:
    (tmp_path / "c.yaml").write_text(text, "utf-8")
    return load_config(Whole, tmp_path / "c.yaml", overrides)


def test_file_overrides_and_defaults_meet(tmp_path: Path) -> None:
    loaded = config(
        tmp_path, "path: a/b\nsection:\n  inner: {depth: 5}\n", "section.inner.rate=1e-4", "maybe.name=b=c"
    )
    assert loaded.path == Path("a/b")
    assert (loaded.section.inner.depth, loaded.section.inner.rate) == (5, 1e-4)
    assert loaded.maybe is not None
    assert loaded.maybe.name == "b=c"
    with pytest.raises(ValidationError):
        loaded.section.inner.depth = 9  # fixed once loaded


@pytest.mark.parametrize(
    ("values", "key", "hint"),
    [
        ({"sektion": {}}, "sektion", "section"),
        ({"section": {"iner": {}}}, "section.iner", "inner"),
        ({"section": {"inner": {"dept": 1}}}, "section.inner.dept", "depth"),
        ({"maybe": {"nam": 1}}, "maybe.nam", "name"),
        ({"many": [{}, {"rat": 1}]}, "many.1.rat", "rate"),
        ({"by_name": {"x": {"dpth": 1}}}, "by_name.x.dpth", "depth"),
        ({"either": {"widht": 1}}, "either.Other.widht", "width"),
    ],
)
def test_an_unknown_key_gets_a_did_you_mean_at_every_depth(values: dict, key: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="unknown key") as caught:
        parse_config(Whole, {"path": "p", **values}, source="here")
    assert f"unknown key {key!r}; did you mean {hint!r}?" in str(caught.value)
    assert caught.value.exit_code == 2


def test_an_unknown_key_without_a_likeness_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="known keys: depth, name, rate"):
        parse_config(Whole, {"path": "p", "maybe": {"zzzzzz": 1}}, source="here")


def test_a_removed_key_is_answered_with_what_to_do() -> None:
    class Later(Whole):
        removed: ClassVar = {"section.old": "set section.mode"}

    with pytest.raises(ConfigError, match=r"the key 'section\.old' was removed: set section\.mode"):
        parse_config(Later, {"path": "p", "section": {"old": 1}}, source="here")


def test_a_key_in_the_wrong_section_is_told_where_it_stands() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'shape'; did you mean 'section\.shape'\?"):
        parse_config(Whole, {"path": "p", "shape": [1, 2]}, source="here")
    with pytest.raises(
        ConfigError, match="unknown key 'rate'; known keys: by_name"
    ):  # in five sections: no help
        parse_config(Whole, {"path": "p", "rate": 1}, source="here")


def test_all_problems_are_told_at_once() -> None:
    values = {"section": {"mode": "loud", "inner": {"depth": "deep", "nam": 1}}}
    with pytest.raises(ConfigError, match="4 problems") as caught:
        parse_config(Whole, values, source="here")
    text = str(caught.value)
    for part in (
        "missing key 'path'",
        "section.mode",
        "'auto' or 'off'",
        "got 'loud'",
        "section.inner.depth",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"section": {"inner": {"depth": 0}}}, "section.inner.depth"),
        ({"section": {"inner": {"depth": 1.5}}}, "section.inner.depth"),
        ({"section": {"inner": {"rate": float("nan")}}}, "section.inner.rate"),
        ({"section": {"inner": {"rate": float("inf")}}}, "section.inner.rate"),
        ({"section": {"inner": {"name": 3}}}, "section.inner.name"),
        ({"section": {"shape": [1, 2, 3]}}, "section.shape"),
        ({"section": None}, "section"),
        ({"many": {}}, "many"),
    ],
)
def test_wrong_types_and_ranges_are_refused(values: dict, where: str) -> None:
    with pytest.raises(ConfigError, match="1 problem:") as caught:
        parse_config(Whole, {"path": "p", **values}, source="here")
    assert f"- {where}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "'a' is given twice"),
        ("s:\n  a: 1\n  a: 2\n", "'a' is given twice"),
        ("s: [{a: 1, 'a': 2}]\n", "'a' is given twice"),
        ("a: [1\n", "not valid YAML"),
        ("a: b: c\n", "not valid YAML"),
        ("a: \tb\n\tc: d\n", "not valid YAML"),
        ("[1, 2]: 3\n", "not valid YAML"),
        ("a: 2020-13-45\n", "not valid YAML"),
        ("a: !!python/object/apply:os.system ['true']\n", "not valid YAML"),
        ("- a\n", "not a mapping"),
        ("", "an empty file"),
        ("just text", "not a mapping"),
    ],
)
def test_bad_yaml(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.yaml").write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        read_yaml(tmp_path / "c.yaml")
    assert "c.yaml" in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("a: caf\xe9\n".encode("latin-1"))
    for name in ("missing", ".", "latin"):
        with pytest.raises(ConfigError, match="cannot read the configuration"):
            read_yaml(tmp_path / name)


def test_anchors_and_merge_keys_work_and_may_be_overridden(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "base: &base\n  a: 1\n  b: 2\nmore: &more\n  <<: *base\n  b: 3\nlast:\n  <<: *more\n  a: 9\n", "utf-8"
    )
    assert read_yaml(tmp_path / "c.yaml")["last"] == {"a": 9, "b": 3}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("novalue", "no KEY=VALUE"),
        ("=3", "no KEY=VALUE"),
        ("a..b=3", "no such key"),
        (".a=3", "no such key"),
        ("text.sub=3", "runs through a plain value"),
        ("list.0=3", "runs through a plain value"),
        ("a=[1", "cannot read a value"),
        ("a={b: 1, b: 2}", "cannot read a value"),
        ("a=2020-13-45", "cannot read a value"),
    ],
)
def test_bad_overrides(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        apply_overrides({"text": "x", "list": [1], "a": {}}, [override])
    assert override in str(caught.value)


def test_overrides_are_parsed_as_yaml_and_open_sections() -> None:
    values = apply_overrides(
        {"empty": None}, ["a.b=1", "a.c=[1, x]", "empty.d=true", "n=", "t='3'", "a.b=2", "url=k=v"]
    )
    assert values == {"empty": {"d": True}, "a": {"b": 2, "c": [1, "x"]}, "n": None, "t": "3", "url": "k=v"}
