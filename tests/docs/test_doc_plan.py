"""The words with which a documented command is executed, and what it finds in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.doc_commands import Command, commands
from tests.docs.doc_plan import arguments_of, category
from tests.docs.doc_tables import SMALLER
from tests.docs.doc_world import World, names_in, outputs_in, provide


def read(*lines: str) -> list[Command]:
    return commands(Path("page.md"), "\n".join(["```", *lines, "```"]))


def test_an_ellipsis_takes_the_words_of_the_last_whole_command() -> None:
    whole, other, dots = read(
        "vocabforge tune --target A --size 1,2 --output tuned",
        "vocabforge doctor",
        "vocabforge tune … --output there --size 3",
    )
    words = arguments_of(dots, [whole, other])
    assert words == ["tune", "--target", "A", "--output", "there", "--size", "3", *SMALLER["tune"]]


def test_sizes_are_replaced_and_the_smaller_ones_stand_last() -> None:
    (one,) = read("vocabforge eval --target A --head-rows 32768 --limit 20")
    words = arguments_of(one, [])
    assert words[:7] == ["eval", "--target", "A", "--head-rows", "128", "--limit", "20"]
    assert words[7:] == list(SMALLER["eval"])


def test_what_is_read_and_what_is_written() -> None:
    words = [
        "capture",
        "--config",
        "r.yaml",
        "--counts",
        "chat=c/",
        "data.train=[a,b]",
        "--output",
        "states/",
    ]
    assert {"r.yaml", "c", "a", "b"} <= set(names_in(words))
    assert "states" not in names_in(words)
    assert outputs_in([*words, "output=run"]) == ["states/", "run"]


def test_the_world_gives_what_no_command_has_made(tmp_path: Path) -> None:
    world, place = World(tmp_path / "world"), tmp_path / "place"
    world.folder.mkdir()
    (place / "texts").mkdir(parents=True)
    (place / "old").mkdir()
    provide(world, "page.md", ["count-freq", "texts/", "held_out.txt", "--output", "old"], place)
    assert not (place / "texts").is_symlink()
    assert (place / "held_out.txt").resolve() == world.folder / "held_out.txt"
    assert not (place / "old").exists()
    assert (place / "recipes" / "tiny" / "tutorial.yaml").is_file()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("make test", "parsed"),
        ("python kernels/build.py", "parsed"),
        ("vocabforge doctor", "executed"),
        ("accelerate launch --cpu -m vocabforge doctor", "executed"),
    ],
)
def test_how_far_a_command_is_taken(line: str, wanted: str) -> None:
    assert category(read(line)[0]) == wanted
