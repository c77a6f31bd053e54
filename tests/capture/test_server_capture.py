"""States from a server: equal to our own capture, bounded on the disk, checked, and gone on with."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.capture.capture_support import make_cache, make_job, splits
from tests.capture.hidden_server import HiddenServer
from tests.worlds import tiny_target
from vocabforge.core.errors import MismatchError, UsageError, VocabForgeError
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.head import TargetHead
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.capture import server as module
from vocabforge.train.capture.build import build_capture, load_capture_target
from vocabforge.train.capture.cache import CachedCapture
from vocabforge.train.capture.config import CaptureConfig, ServerConfig
from vocabforge.train.capture.online import OnlineCapture, to_tensors
from vocabforge.train.capture.server import ServerCapture

CPU = torch.device("cpu")
KEYS = [("train", row) for row in range(len(splits()["train"]))]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> HFTarget:
    return HFTarget.load(tiny_target(tmp_path_factory.mktemp("target")))


@pytest.fixture
def server(target: HFTarget, tmp_path: Path) -> Iterator[HiddenServer]:
    with HiddenServer(tmp_path / "states", target) as running:
        yield running


def source(server: HiddenServer, target: HFTarget, owner: str = "test", **settings: Any) -> ServerCapture:
    """As training makes it: no layer of the target is loaded."""
    path = Path(str(target.source))
    settings = {"url": server.url, "folder": server.folder if server.files is None else None, **settings}
    config = CaptureConfig(server=ServerConfig(**settings))
    head = load_capture_target(path, config, aux_layers=target.aux_layers, device=CPU)
    assert isinstance(head, TargetHead)
    made = build_capture(
        config, head, rows=splits(), path=path, fingerprint=target_fingerprint(path), owner=owner
    )
    assert isinstance(made, ServerCapture)
    return made


def ask(made: ServerCapture, rows: list[int], split: str = "train") -> Any:
    return made(to_tensors(splits()[split], rows, CPU), [(split, row) for row in rows])


def test_states_are_those_of_our_own_capture(server: HiddenServer, target: HFTarget) -> None:
    made, online = source(server, target), OnlineCapture(target, 0)
    made.expect(KEYS)
    for rows, split in (([0, 1, 2], "train"), ([1, 0], "heldout"), ([3], "train"), ([5, 4], "train")):
        batch = to_tensors(splits()[split], rows, CPU)
        ours = online(batch, [(split, row) for row in rows])
        theirs = ask(made, rows, split)
        torch.testing.assert_close(theirs.features, ours.features, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(theirs.hidden, ours.hidden, rtol=1e-4, atol=1e-4)
    made.close()
    assert not list(server.folder.iterdir())


def test_states_become_a_cache(server: HiddenServer, target: HFTarget, tmp_path: Path) -> None:
    make_cache(make_job(tmp_path / "c", target, splits()), target, source(server, target, concurrency=1))
    batch, keys = to_tensors(splits()["train"], [1, 0], CPU), [KEYS[1], KEYS[0]]
    cached = CachedCapture(tmp_path / "c")(batch, keys)
    again = source(server, target, concurrency=1)(batch, keys)
    assert torch.equal(cached.hidden, again.hidden)
    assert torch.equal(cached.features, again.features)


def test_held_out_rows_are_asked_for_once(server: HiddenServer, target: HFTarget) -> None:
    made = source(server, target)
    first, asked = ask(made, [0, 1], "heldout"), len(server.bodies)
    assert torch.equal(ask(made, [0, 1], "heldout").hidden, first.hidden)
    assert len(server.bodies) == asked


def test_no_more_than_the_buffer_lies_unread(server: HiddenServer, target: HFTarget) -> None:
    token = 4 * target.hidden_size * (len(target.aux_layers) + 1) + 8
    room = 70 * token  # two rows of at most 32 tokens, of nine
    made = source(server, target, buffer_gb=room / 1e9)
    made.expect(KEYS)
    for one in made._asked:
        for _, _, answer in one.documents:
            answer.result()
    unread = list(server.folder.glob("*.safetensors"))
    assert (
        1 <= len(unread) == len(server.bodies) < sum(len(splits()[key[0]].document[key[1]]) for key in KEYS)
    )
    for _, row in KEYS:
        ask(made, [row])
    header = 400
    assert server.most_bytes <= room + header * len(server.bodies)
    assert not list(server.folder.iterdir())
    total = int((splits()["train"].document != 0).sum()) * token
    assert room < total / 2  # else nothing was bounded


def test_a_row_larger_than_the_buffer_goes_through_alone(server: HiddenServer, target: HFTarget) -> None:
    made = source(server, target, buffer_gb=1e-9)
    made.expect(KEYS)
    assert len(made._asked) == 1
    for _, row in KEYS:
        ask(made, [row])


def test_files_of_a_killed_run_go_and_those_of_others_stay(server: HiddenServer, target: HFTarget) -> None:
    killed, other = source(server, target), source(server, target, owner="another run")
    for made in (killed, other):
        made.expect(KEYS[:2])
        for one in made._asked:
            for _, _, answer in one.documents:
                answer.result()
    before = len(list(server.folder.iterdir()))
    again = source(server, target)
    assert 0 < len(list(server.folder.iterdir())) < before
    other.close()
    assert not list(server.folder.iterdir())
    again.close()


def test_an_interruption_leaves_no_file(server: HiddenServer, target: HFTarget) -> None:
    made, server.fail_after = source(server, target, retries=0), 3
    made.expect(KEYS)
    with pytest.raises(VocabForgeError, match="gives no hidden states"):
        ask(made, [row for _, row in KEYS])
    assert not list(server.folder.glob("*.safetensors"))


def test_a_restart_is_waited_for(server: HiddenServer, target: HFTarget) -> None:
    failures = iter([(503, {"error": "loading"}), None])  # busy, then it hangs up

    def reply(body: dict[str, Any]) -> Any:
        for one in failures:
            return one
        return server.complete(body)

    server.reply = reply
    made = source(server, target, concurrency=1)
    expected = OnlineCapture(target, 0)(to_tensors(splits()["train"], [0], CPU), [KEYS[0]])
    torch.testing.assert_close(ask(made, [0]).hidden, expected.hidden, rtol=0, atol=1e-4)


def test_a_server_that_is_away_or_hangs(server: HiddenServer, target: HFTarget) -> None:
    made = source(server, target, retries=0, timeout_s=0.2)
    server.delay = 1.0
    with pytest.raises(VocabForgeError, match="gives no hidden states") as error:
        ask(made, [0])
    assert "no answer in time" in str(error.value)
    assert "run the same command again" in str(error.value)
    server.url = "http://127.0.0.1:9"
    with pytest.raises(VocabForgeError, match="gives no hidden states"):
        source(server, target, retries=0)


def test_a_server_without_a_connector_is_told_how_to_start(server: HiddenServer, target: HFTarget) -> None:
    server.reply = lambda _: (200, {"choices": [{"text": "x"}]})
    with pytest.raises(VocabForgeError, match="answers without hidden states") as error:
        ask(source(server, target), [0])
    words = shlex.split(str(error.value.remedy).removeprefix("start it with: "))
    assert words[:3] == ["vllm", "serve", str(target.source)]
    speculative = json.loads(words[words.index("--speculative-config") + 1])
    layers = speculative["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"]
    assert layers == server.layers
    transfer = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert transfer["kv_connector_extra_config"]["shared_storage_path"] == str(server.folder)


def test_no_file_arrives(server: HiddenServer, target: HFTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FILE_S", 0.05)
    server.reply = lambda _: (200, {"kv_transfer_params": {"hidden_states_path": "/elsewhere/x.safetensors"}})
    with pytest.raises(VocabForgeError, match="no file of hidden states arrives") as error:
        ask(source(server, target), [0])
    assert "/elsewhere/x.safetensors" in str(error.value)
    server.folder.rmdir()
    with pytest.raises(UsageError, match="folder that the server writes to is not there"):
        source(server, target)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"meta": {"target": "0" * 64}}, "target 000000000000"),
        ({"layers": (1, 2, 4, 5)}, "layers [1, 2, 4, 5]"),
        ({"layers": (2, 3, 5)}, "layers [2, 3, 5]; shape"),
        ({"meta": {"layers": "[]"}}, "layers []"),
    ],
    ids=["other-target", "shifted-layers", "fewer-layers", "no-layers"],
)
def test_states_of_something_else_are_refused(target, tmp_path, change, named):
    with HiddenServer(tmp_path / "other", target, **change) as server:
        with pytest.raises(MismatchError, match="not those that were asked for") as error:
            ask(source(server, target), [0])
        assert named in str(error.value)
        assert "vllm serve" in str(error.value)


def test_other_tokens_and_dtypes_are_refused(server: HiddenServer, target: HFTarget) -> None:
    def other(body: dict[str, Any]) -> Any:
        return server.complete({**body, "prompt": [3, *body["prompt"][1:]]})

    server.reply = other
    with pytest.raises(MismatchError, match="token ids") as error:
        ask(source(server, target), [1])
    assert "shape" not in str(error.value)
    server.reply = server.complete
    server.target = HFTarget.load(Path(str(target.source)), dtype="bfloat16")
    with pytest.raises(MismatchError, match="dtype bfloat16"):
        ask(source(server, target), [1])


def test_a_damaged_file_is_named(server: HiddenServer, target: HFTarget) -> None:
    def damaged(body: dict[str, Any]) -> Any:
        status, said = server.complete(body)  # type: ignore[misc]
        file = server.folder / Path(said["kv_transfer_params"]["hidden_states_path"]).name
        file.write_bytes(file.read_bytes()[:-7])
        return status, said

    server.reply = damaged
    with pytest.raises(VocabForgeError, match="cannot be read"):
        ask(source(server, target), [0])


def test_the_key_is_sent_and_shown_nowhere(server, target, monkeypatch):
    monkeypatch.setenv("A_KEY", "tell-nobody")
    made = source(server, target, api_key_env="A_KEY", retries=0)
    ask(made, [0])
    assert server.headers[-1]["Authorization"] == "Bearer tell-nobody"
    server.reply = lambda _: (401, {"error": "tell-nobody is no key"})
    with pytest.raises(VocabForgeError, match="gives no hidden states") as error:
        ask(made, [1])
    assert "401" in str(error.value)
    assert "tell-nobody" not in str(error.value)
