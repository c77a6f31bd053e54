"""Work on a real Ray cluster of two workers gives what one process gives, whatever dies in between."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_support import assert_user_error, invoke, ok
from tests.train.run_support import make_place, write_config
from tests.worlds import make_target
from vocabforge.core import cluster as module
from vocabforge.core.cluster import Cluster
from vocabforge.core.errors import DataError, VocabForgeError
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.vocab.counts.run import CountRun, count_corpus
from vocabforge.vocab.counts.shards import UnitCounter
from vocabforge.vocab.counts.tally import CountOptions

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = (
    "token",
    secrets.token_hex(32),
)  # not a file at home
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray then listens on 127.0.0.1 alone
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install ray")


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    """Two workers on this machine, for all tests here; ``--ray auto`` finds them."""
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        object_store_memory=80 << 20,
    )
    ray._private.worker._worker_logs_enabled = False  # as after a connection of ours
    yield
    ray.shutdown()


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[1])


def workers() -> list[int]:
    """The processes of the running command's workers: grandchildren, for other tests may have clusters too."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            process = int(file.parent.name)
            if file.read_bytes().startswith(b"ray::_Worker") and parent(parent(process)) == os.getpid():
                found.append(process)
        except OSError:  # it has just ended
            continue
    return found


def ended() -> bool:
    """Whether all workers have ended, or do so within seconds."""
    for _ in range(100):
        if not workers():
            return True
        time.sleep(0.1)
    return False


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Kill every worker as soon as the first piece is done; the processes that were killed."""
    take, killed = Cluster._take, []

    def taken(self: Cluster, reply: Any, worker: Any, piece: Any) -> None:
        take(self, reply, worker, piece)
        if piece is not None and piece.done and not killed:
            killed.extend(workers())
            for process in killed:
                os.kill(process, signal.SIGKILL)

    monkeypatch.setattr(Cluster, "_take", taken)
    return killed


def files(folder: Path) -> dict[str, str]:
    """Content of an artefact's files, by name."""
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    return {name: entry["sha256"] for name, entry in manifest["files"].items()}


# The cluster itself


def test_pieces_of_killed_workers_are_done_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def square(base: int, number: int) -> int:
        print(f"squaring {number}", file=sys.stderr)
        once = tmp_path / f"{number}"
        if number % 3 == 0 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return base + number * number

    with Cluster("auto", queue=2) as cluster:
        cluster.use(lambda: 100)
        assert list(cluster.in_order(square, ((n,) for n in range(8)))) == [100 + n * n for n in range(8)]
    said = capsys.readouterr().err
    assert said.count(f"A worker on {os.uname().nodename} died at the same piece of work") == 3
    assert said.count("squaring 5") == 1
    assert ended()


def test_pieces_are_begun_as_workers_become_free() -> None:
    """So that memory does not grow with the corpus."""
    begun, results = [], []
    with Cluster("auto") as cluster:

        def pieces() -> Iterator[module.Piece]:
            for number in range(20):
                begun.append(number)
                yield cluster.submit(lambda _, number=number: number)

        for piece in cluster.as_completed(pieces()):
            results.append(cluster.get(piece))
            assert len(begun) - len(results) < cluster.ahead
    assert sorted(results) == begun == list(range(20))


def test_a_terminated_command_ends_without_a_dump() -> None:
    code = (
        "import os, signal\n"
        "from vocabforge.core.cluster import Cluster\n"
        "with Cluster('local'):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")


def test_a_piece_that_kills_every_worker_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ATTEMPTS", 2)
    with Cluster("auto") as cluster:
        piece = cluster.submit(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(VocabForgeError, match="2 workers died at the same piece of work"):
            cluster.get(piece)


def test_errors_of_workers_are_those_of_the_command_and_name_the_machine() -> None:
    def fail(_: None) -> None:
        raise DataError("no row", got="nothing", source="a.jsonl", remedy="add rows")

    with Cluster("auto") as cluster:
        with pytest.raises(DataError, match=f"a.jsonl on {os.uname().nodename}") as caught:
            cluster.get(cluster.submit(fail))
        assert caught.value.remedy == "add rows"
        with pytest.raises(ZeroDivisionError):
            cluster.get(cluster.submit(lambda _: 1 // 0))


def test_workers_with_other_software_are_refused() -> None:
    begun = module._Worker().begin({**module._software(), "torch": "1.0"}, os.getcwd(), 1, [])
    assert isinstance(begun[1], VocabForgeError)
    assert begun[1].got.startswith('torch: "1.0", now ')


@pytest.mark.parametrize(
    ("address", "words"),
    [("127.0.0.1:1", "ConnectionRefusedError"), ("ray://127.0.0.1:1", "ConnectionRefusedError")],
)
def test_an_unreachable_address_is_one_error(address: str, words: str) -> None:
    with pytest.raises(VocabForgeError, match=words) as caught:
        Cluster(address)
    assert address in caught.value.source


def test_another_service_than_ray_is_refused_at_once() -> None:
    with Cluster(ray.get_runtime_context().gcs_address) as found:  # a real one is accepted
        assert found.ahead
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(VocabForgeError, match="another service than Ray listens there"):
            Cluster(f"127.0.0.1:{server.server_port}")
        server.shutdown()


def test_an_address_of_no_form_is_refused() -> None:
    with pytest.raises(VocabForgeError, match="expected: auto, local, HOST:PORT"):
        Cluster("somewhere")


# The commands


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, and texts in two files."""
    folder = tmp_path_factory.mktemp("corpus")
    make_target(folder / "target")
    draw = random.Random(0)
    for name, number in {"a": 2000, "b": 600}.items():
        lines = [json.dumps({"text": "".join(draw.choices("abc de\u00e9 xyz", k=50))}) for _ in range(number)]
        (folder / f"{name}.jsonl").write_text("\n".join([*lines, "nonsense"]) + "\n", "utf-8")
    return folder


def count(corpus: Path, folder: Path, **options: Any) -> CountRun:
    """Count shards of 30 kB."""
    tokenizer = load_tokenizer(corpus / "target")
    paths = [corpus / "a.jsonl", corpus / "b.jsonl"]
    return count_corpus(tokenizer, paths, CountOptions(shard_bytes=30_000, **options), folder)


def facts(run: CountRun) -> list[Any]:
    table = run.table
    return [table.counts.tolist(), table.documents, table.bytes, table.sources, run.problems]


def test_counts_are_those_of_one_process(corpus, tmp_path, killer, capsys):
    two = count(corpus, tmp_path / "two", ray="auto")
    assert killer
    said = capsys.readouterr().err
    assert "(1 of 4 attempts)" in said
    assert "Skipped" in said
    assert facts(two) == facts(count(corpus, tmp_path / "one"))


def test_the_same_command_goes_on_after_an_interruption(corpus, tmp_path, monkeypatch):
    save = UnitCounter.save

    def saved(self: UnitCounter, *given: Any) -> None:
        save(self, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(UnitCounter, "save", saved)
        with pytest.raises(KeyboardInterrupt):
            count(corpus, tmp_path / "two", ray="auto")
    assert ended()
    # The rest is counted up to a number of tokens, which ends within a shard.
    two = count(corpus, tmp_path / "two", ray="auto", tokens=90_000)
    assert two.resumed == 1
    assert facts(two) == facts(count(corpus, tmp_path / "one", tokens=90_000))


def test_an_input_that_a_worker_sees_otherwise_is_named(corpus, tmp_path, monkeypatch):
    copy = tmp_path / "b.jsonl"
    copy.write_bytes((corpus / "b.jsonl").read_bytes())
    words = ["count-freq", "--tokenizer", corpus / "target", "--input", copy, "--output", tmp_path / "out"]
    begin = Cluster._begin_worker
    for change, words_of_error in {
        lambda: copy.write_bytes(b"{}\n" * 9): "an input is another file on a machine of the cluster",
        copy.unlink: "a machine of the cluster cannot read an input",
    }.items():

        def changed(self: Cluster, change: Callable[[], object] = change) -> None:
            change()
            begin(self)

        monkeypatch.setattr(Cluster, "_begin_worker", changed)
        done = invoke(*words, "--ray", "auto")
        assert_user_error(done, 1, words_of_error, f"{copy} on {os.uname().nodename}", "shared folder")


def test_prepared_rows_are_those_of_one_process(corpus, tmp_path, killer, monkeypatch):
    monkeypatch.setattr("vocabforge.corpus.prepared.dataset._UNIT_BYTES", 3_000)
    words = ["prepare-data", "--target", corpus / "target", "--input", corpus / "b.jsonl", "--length", 64]
    one = json.loads(ok(invoke(*words, "--output", tmp_path / "one", "--json")).stdout)
    two = ok(invoke(*words, "--output", tmp_path / "two", "--ray", "auto", "--json"))
    assert killer
    assert {**json.loads(two.stdout), "output": one["output"]} == one
    assert files(tmp_path / "two") == files(tmp_path / "one")


def test_answers_are_those_of_one_process(corpus: Path, tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"question {n} {t}"} for t in range(1 + n % 2)]}
        for n in range(12)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["regenerate", "--target", corpus / "target", "--input", tmp_path / "rows.jsonl"]
    words += [
        "--max-tokens",
        "8",
        "--batch-size",
        "2",
        "--temperature",
        "0.7",
        "--empty",
        "keep",
        "--device",
        "cpu",
    ]
    ok(invoke(*words, "--output", tmp_path / "one"))
    ok(invoke(*words, "--output", tmp_path / "two", "--ray", "auto"))
    assert files(tmp_path / "two") == files(tmp_path / "one")
    refused = invoke(*words, "--output", tmp_path / "three", "--ray", "auto", "--device-map", "auto")
    assert_user_error(refused, 2, "--device-map and --ray exclude each other")


def test_captured_states_are_those_of_one_process(tmp_path: Path) -> None:
    place = make_place(tmp_path, texts=150)
    config = write_config(place, "run")
    words = ["capture", "-c", config, "--yes", "--shard-mb", 1, "run.device=cpu"]
    ok(invoke(*words, "-o", place / "one"))
    ok(invoke(*words, "-o", place / "two", "--ray", "auto"))
    assert len(files(place / "one")) > 4, "some shards do not begin at the first row"
    assert files(place / "two") == files(place / "one")
    refused = invoke(*words, "-o", place / "three", "--ray", "auto", "--part", "1/2")
    assert_user_error(refused, 2, "--ray and --part exclude each other")
