"""The commands of README and docs, executed one after the other as each document prints them (``make test-docs``).

In process, in a folder of the document's own, over one tiny world (``doc_world.py``); what stands for what, what is
made smaller and what is left out stands in ``doc_tables.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corpus.chat_server import FakeServer
from tests.docs.doc_commands import Command, commands, documents
from tests.docs.doc_plan import arguments_of, category, executed, kept_by, longest, planned
from tests.docs.doc_tables import GIVEN, KEPT, WORDS
from tests.docs.doc_world import World, names_in, provide, run
from tests.worlds import ROOT

EXECUTED = executed()


@pytest.fixture(scope="session")
def docs_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("docs-world"))


@pytest.fixture
def servers() -> Iterator[dict[str, str]]:
    with FakeServer() as one, FakeServer() as two:
        yield {"{server}": one.url, "{second_server}": two.url}


def perform(
    command: Command, before: list[Command], world: World, servers: dict[str, str], *more: str
) -> None:
    words = [servers.get(word, word) for word in arguments_of(command, before)]
    provide(world, command.file, words, Path.cwd())
    run(*words, *more)


@pytest.mark.docs
@pytest.mark.parametrize("document", EXECUTED)
def test_the_commands_of_a_document_work_in_their_order(
    document: str,
    docs_world: World,
    servers: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VOCABFORGE_DATA", str(docs_world.benchmarks))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    done: list[Command] = []
    failed = []
    for command in EXECUTED[document]:
        try:
            perform(longest(command), done, docs_world, servers)
        except AssertionError as error:
            failed.append(f"{command.place}: {command.text}\n    {error}")
        done.append(command)
    assert not failed, "\n" + "\n".join(failed)


@pytest.mark.docs
@pytest.mark.parametrize("command", planned(), ids=lambda command: command.place)
def test_what_is_not_executed_can_be_planned(
    command: Command,
    docs_world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = kept_by(command)
    assert kept is not None
    perform(command, [], docs_world, {}, *kept.plan)
    assert not (tmp_path / "runs").exists()


def test_every_excuse_still_has_a_command() -> None:
    found = [command for name in {one.file for one in KEPT} for command in commands(ROOT / name)]
    stale = [one for one in KEPT if not any(kept_by(command) == one for command in found)]
    assert not stale, f"no command begins so any more: {stale}"


def test_every_name_and_word_of_the_tables_still_stands_somewhere() -> None:
    whole = [command for path in documents() for command in commands(path) if category(command) == "executed"]
    used = {word for command in whole for one in command.variants() for word in one.words}
    read = {(command.file, name) for command in whole for name in names_in(longest(command).words)}
    names = {name for _, name in read} | {f"{file}:{name}" for file, name in read}
    # Also the folder of a file that is named: `tuned` of `tuned/recipe.yaml`.
    names |= {"/".join(name.split("/")[:end]) for name in names for end in range(1, name.count("/") + 1)}
    names |= {name for command in planned() for name in names_in(command.words)}
    names |= {value.rpartition("=")[2].strip("[]") for value in WORDS.values()}
    assert not [word for word in WORDS if word not in used]
    assert not [name for given in GIVEN.values() for name in given if name not in names]
