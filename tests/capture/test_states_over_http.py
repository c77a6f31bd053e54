"""States from servers on other machines: bit for bit those of the folder, resumed, bounded and guarded."""

from __future__ import annotations

import http.client
import shutil
import socket
import socketserver
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.capture.capture_support import splits
from tests.capture.hidden_server import HiddenServer
from tests.capture.test_server_capture import KEYS, ask, source
from tests.worlds import tiny_target
from vocabforge.core.errors import VocabForgeError
from vocabforge.models.target.hf import HFTarget
from vocabforge.serve.vllm import state_files
from vocabforge.serve.vllm.state_files import StateFiles
from vocabforge.train.capture import server as module

ROWS = [row for _, row in KEYS]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> HFTarget:
    return HFTarget.load(tiny_target(tmp_path_factory.mktemp("target")))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_WAIT_S", 0.02)
    monkeypatch.setattr(state_files, "_WAIT_S", 0.05)
    monkeypatch.setattr(socketserver.BaseServer.serve_forever, "__defaults__", (0.02,))  # it ends at once


@pytest.fixture
def server(target: HFTarget, tmp_path: Path) -> Iterator[HiddenServer]:
    with HiddenServer(tmp_path / "states", target, share_bytes=10**9) as running:
        yield running


@pytest.fixture
def local(target: HFTarget, tmp_path: Path) -> Any:
    """All rows, through a shared folder."""
    with HiddenServer(tmp_path / "local", target) as running:
        return ask(source(running, target, concurrency=1), ROWS)


def equal(one: Any, other: Any) -> bool:
    return torch.equal(one.features, other.features) and torch.equal(one.hidden, other.hidden)


def documents() -> int:
    return sum(len(set(row[row != 0])) for row in splits()["train"].document)


def test_states_are_those_of_the_folder(server: HiddenServer, target: HFTarget, local: Any) -> None:
    made = source(server, target)
    made.expect(KEYS)
    assert equal(ask(made, ROWS), local)
    assert len(server.bodies) == documents()
    assert not list(server.folder.iterdir())


def test_a_broken_transfer_goes_on_where_it_broke(server, target, local, monkeypatch):
    firsts: list[int] = []
    whole = socket.socket.sendfile

    def cut(self: socket.socket, file: Any, offset: int = 0, count: int | None = None) -> int:
        firsts.append(offset)
        whole(self, file, offset, 3000)
        raise ConnectionResetError

    monkeypatch.setattr(socket.socket, "sendfile", cut)
    made = source(server, target, concurrency=1, retries=0)
    assert equal(ask(made, ROWS), local)
    assert len(server.bodies) == documents(), "no document is computed twice"
    assert len(firsts) > 2 * documents()
    assert {first % 3000 for first in firsts} == {0}


def test_a_full_disk_refuses_and_is_tried_again(target: HFTarget, local: Any, tmp_path: Path) -> None:
    room = 20_000  # one document, or two short ones
    with HiddenServer(tmp_path / "small", target, share_bytes=room) as server:
        blocker = server.folder / "other.safetensors"
        blocker.write_bytes(bytes(room))
        with pytest.raises(VocabForgeError, match="gives no hidden states") as error:
            ask(source(server, target, retries=1), [0])
        assert "507" in str(error.value)
        assert "states_gb" in str(error.value)
        refused = len(server.bodies)

        def reply(body: dict[str, Any]) -> Any:
            if len(server.bodies) >= refused + 3:
                blocker.unlink(missing_ok=True)
            return server.complete(body)

        server.reply = reply
        assert equal(ask(source(server, target, concurrency=1), ROWS), local)
        assert len(server.bodies) == refused + 2 + documents()
        made = source(server, target, retries=200)
        made.expect(KEYS)
        assert equal(ask(made, ROWS), local)
        assert server.most_bytes <= room + 1000  # headers


def test_what_nobody_fetches_expires(server, target, monkeypatch):
    server.complete(
        {"prompt": [3, 4, 5], "max_tokens": 1, "temperature": 0, "model": "tiny", "request_id": "k"}
    )
    (left,) = server.folder.iterdir()
    former = server.folder / "cmpl-of-a-killed-server.safetensors.partial"
    foreign = server.folder / "model.safetensors"
    for file in (former, foreign):
        file.write_bytes(b"1")
    monkeypatch.setattr(state_files, "_EXPIRE_S", -1.0)
    assert server.files is not None
    server.files.add(server.folder / "next.safetensors", 10**10, lambda: None)
    assert (left.exists(), former.exists(), foreign.exists()) == (False, False, True)
    assert request(server, "GET", f"/{left.name}")[0] == 404


def request(server: HiddenServer, method: str, path: str, **headers: str) -> tuple[int, bytes]:
    assert server.files is not None
    link = http.client.HTTPConnection("127.0.0.1", server.files.server_address[1])
    link.request(method, path, headers=headers)
    reply = link.getresponse()
    said = reply.status, reply.read()
    link.close()
    return said


def test_no_other_file_is_served(target: HFTarget, tmp_path: Path) -> None:
    with HiddenServer(tmp_path / "states", target, share_bytes=10**9, key="a-key") as server:
        body = {"prompt": [3, 4, 5], "max_tokens": 1, "temperature": 0, "model": "tiny", "request_id": "k"}
        server.complete(body)
        (file,) = server.folder.iterdir()
        for outside in (tmp_path / file.name, server.folder / "not-announced.safetensors"):
            shutil.copy(file, outside)
        names = (file.name, f"../{file.name}", f"%2e%2e/{file.name}", f"/{tmp_path}/{file.name}")
        for name in (*names[1:], "not-announced.safetensors", f".{file.name}", ""):
            for method in ("GET", "DELETE"):
                assert request(server, method, f"/{name}", Authorization="Bearer a-key")[0] == 404, name
        for headers in ({}, {"Authorization": "Bearer b-key"}):
            for method in ("GET", "DELETE"):
                status, said = request(server, method, f"/{file.name}", **headers)
                assert (status, b"a-key" in said) == (401, False)
        assert request(server, "GET", names[1][2:], Authorization="Bearer a-key") == (200, file.read_bytes())
        some = request(server, "GET", f"/{file.name}", Authorization="Bearer a-key", Range="bytes=100-")
        assert some == (206, file.read_bytes()[100:])
        assert request(server, "DELETE", f"/{file.name}", Authorization="Bearer a-key")[0] == 200
        assert not file.exists()
        assert (tmp_path / file.name).exists()


def test_other_machines_need_a_key(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="VLLM_API_KEY"):
        StateFiles("0.0.0.0:0", tmp_path, limit_bytes=1, key=None)


@pytest.mark.parametrize("address", [":0", "0", "127.0.0.1:", "127.0.0.1:x"])
def test_without_a_host_no_other_address_is_opened(address: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        StateFiles(address, tmp_path, limit_bytes=1, key="a-key")


def test_the_key_is_sent(target: HFTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "a-key")
    with HiddenServer(tmp_path / "states", target, share_bytes=10**9, key="a-key") as server:
        ask(source(server, target, api_key_env="A_KEY"), [0])
        with pytest.raises(VocabForgeError, match="gives no hidden states") as error:
            ask(source(server, target), [0])
        assert "401" in str(error.value)


def test_two_trainers_share_two_servers_of_which_one_ends(target, local, tmp_path):
    with ExitStack() as stack:
        servers = [
            stack.enter_context(HiddenServer(tmp_path / name, target, share_bytes=10**9)) for name in "ab"
        ]
        urls = tuple(server.url for server in servers)
        trainers = [source(servers[0], target, owner=name, url=urls, concurrency=1) for name in "xy"]
        for made in trainers:
            made.expect(KEYS)
        servers[1].fail_after = 5  # of both together
        for made in trainers:
            assert equal(ask(made, ROWS), local)
        assert len(servers[1].bodies) > 5
        assert len(servers[0].bodies) >= 2 * documents() - 5


def test_what_is_gone_or_damaged_is_asked_for_again(server, target, local):
    spoil = iter([Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\xff")])

    def reply(body: dict[str, Any]) -> Any:
        status, said = server.complete(body)  # type: ignore[misc]
        for one in spoil:
            one(server.folder / Path(said["kv_transfer_params"]["hidden_states_path"]).name)
            break
        return status, said

    server.reply = reply
    assert equal(ask(source(server, target, concurrency=1), ROWS), local)
    assert len(server.bodies) == documents() + 2


def test_a_transfer_that_stays_damaged_is_one_error(server: HiddenServer, target: HFTarget) -> None:
    assert server.files is not None
    server.files.digests = type("Wrong", (dict,), {"get": lambda *_: "0" * 64})()
    with pytest.raises(VocabForgeError, match="gives no hidden states") as error:
        ask(source(server, target, retries=1), [0])
    assert "SHA-256 differs" in str(error.value)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({}, "does not serve its states over HTTP"),
        ({"hidden_states_port": 9}, "gives no hidden states"),
        ({"hidden_states_port": None}, "does not serve its states over HTTP"),
        ({"hidden_states_port": 10**30}, "does not serve its states over HTTP"),
    ],
    ids=["older-connector", "nobody-listens", "not-served", "no-port"],
)
def test_servers_that_serve_no_states(server, target, facts, message):
    named = {"kv_transfer_params": {"hidden_states_path": "/there/x.safetensors", **facts}}
    server.reply = lambda _: (200, named)
    with pytest.raises(VocabForgeError, match=message) as error:
        ask(source(server, target, retries=1), [0])
    assert "127.0.0.1" in str(error.value)
    assert facts or '"states_address": "0.0.0.0:8100"' in str(error.value.remedy)


def test_another_version_is_named(server, target, monkeypatch):
    monkeypatch.setattr(state_files._Handler, "version_string", lambda _: "VocabForge-states/2")
    with pytest.raises(VocabForgeError, match="or another version does") as error:
        ask(source(server, target), [0])
    assert "VocabForge-states/2" in str(error.value)
