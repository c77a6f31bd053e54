"""The commands of README and docs, executed one after the other as each document prints them (``make test-docs``).

In process, in a folder of the document's own, over one tiny world (``doc_world.py``); what stands for what, what is
made smaller and what is left out stands in ``doc_tables.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus.chat_server import FakeServer
from tests.docs.doc_commands import Command, commands, documents
from tests.docs.doc_parse import ours
from tests.docs.doc_tables import GIVEN, KEPT, PROGRAMS, SMALLER, WORDS
from tests.docs.doc_world import World, names_in, provide, run
from tests.worlds import ROOT


def excuse_of(command: Command) -> tuple[str, str] | None:
    """The key in ``KEPT`` of a command that is not executed."""
    return next((key for key in KEPT if command.file == key[0] and command.text.startswith(key[1])), None)


def executed(document: Path) -> list[Command]:
    """The commands of a document that are executed, in their order: not those within a sentence."""
    return [
        command
        for command in commands(document)
        if command.whole
        and (command.words[0] not in PROGRAMS or ours(command.words) is not None)
        and excuse_of(command) is None
    ]


EXECUTED = {found[0].file: found for path in documents() if (found := executed(path))}


def longest(command: Command) -> list[str]:
    """The words behind ``vocabforge`` with all optional parts, the first of their choices each."""
    words = ours(command.variants()[:2][-1].words) or []
    return [word for word in words if word != "--plan"]


@pytest.fixture(scope="session")
def docs_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("docs-world"))


@pytest.mark.docs
@pytest.mark.parametrize("document", EXECUTED)
def test_the_commands_of_a_document_work_in_their_order(document, docs_world, tmp_path, monkeypatch):
    monkeypatch.setenv("VOCABFORGE_DATA", str(docs_world["benchmarks"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    failed = []
    with FakeServer() as one, FakeServer() as two:
        servers = {"{server}": one.url, "{second_server}": two.url}
        for command in EXECUTED[document]:
            words = [WORDS.get(word, word) for word in longest(command)]
            words = [servers.get(word, word) for word in [*words, *SMALLER.get(words[0], ())]]
            try:
                provide(docs_world, document, words, tmp_path)
                run(*words)
            except AssertionError as error:
                failed.append(f"{command.place}: {command.text}\n    {error}")
    assert not failed, "\n" + "\n".join(failed)


def test_every_excuse_still_has_a_command() -> None:
    used = {excuse_of(command) for file, _ in KEPT for command in commands(ROOT / file)}
    assert not KEPT.keys() - used, "no command begins so any more"


def test_every_name_and_word_of_the_tables_still_stands_somewhere() -> None:
    whole = [command for found in EXECUTED.values() for command in found]
    used = {word for command in whole for variant in command.variants() for word in variant.words}
    read = {(command.file, name) for command in whole for name in names_in(longest(command))}
    names = {name for _, name in read} | {f"{file}:{name}" for file, name in read}
    # Also the folder of a file that is named: `tuned` of `tuned/recipe.yaml`.
    names |= {"/".join(name.split("/")[:end]) for name in names for end in range(1, name.count("/") + 1)}
    names |= {value.rpartition("=")[2].strip("[]") for value in WORDS.values()}
    assert not [word for word in WORDS if word not in used]
    assert not [name for given in GIVEN.values() for name in given if name not in names]
