"""Every reader of foreign input, with the good example that it is tried on."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from tests.cli.cli_support import invoke
from tests.cli.every_kind import EXPORTS, kinds_of_the_package
from tests.fuzz.goods import ANSWER_TOKENS, BLOCKS, KEY, MTP_FAMILIES, STATES_FILE, document_rows
from vocabforge.core.artifact import open_artifact
from vocabforge.core.config import load_config
from vocabforge.core.errors import DataError, VocabForgeError
from vocabforge.core.gguf import CACHE_VARIABLE, gguf_folder
from vocabforge.corpus.prepared.artifact import load_prepared
from vocabforge.corpus.regenerate import server as client
from vocabforge.corpus.regenerate.log import AnswerLog
from vocabforge.corpus.sources.bytes import Problems
from vocabforge.corpus.sources.sources import SourceOptions, iter_documents
from vocabforge.corpus.tokenizer.tokenizer import encode_prompt, load_tokenizer
from vocabforge.decode.build.recipe import read_recipe
from vocabforge.decode.trees.shapes import read_shape
from vocabforge.evaluate.benchmarks import rows as benchmark_rows
from vocabforge.evaluate.benchmarks.load import load_benchmark
from vocabforge.evaluate.benchmarks.registry import read_format
from vocabforge.evaluate.reports import plots
from vocabforge.evaluate.results.schema import read_results
from vocabforge.evaluate.run.journal import EvaluationJournal
from vocabforge.evaluate.servers import generator
from vocabforge.export.servers import registry as servers
from vocabforge.export.servers.types import ServedTarget
from vocabforge.layouts.registry import load_drafter
from vocabforge.models.heads.io import load_head
from vocabforge.models.lean.model import load_target
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.head import load_target_tensors, open_head
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.target.load import read_target_config
from vocabforge.train.capture import server as capture_server
from vocabforge.train.capture.cache import CachedCapture
from vocabforge.train.capture.config import ServerConfig
from vocabforge.train.capture.online import to_tensors
from vocabforge.train.checkpoint import load_latest
from vocabforge.train.config import TrainConfig
from vocabforge.train.parallel.deepspeed import deepspeed_config
from vocabforge.vocab.subset.maps import read_fr_spec, subset_from_list

Read = Callable[[Path, Path], Any]
"""Reads a spoilt copy; the second path is the folder of all good examples."""


class Reader(NamedTuple):
    """What reads something.

    Attributes:
        good: the example, under the folder of good ones.
        files: which of a folder's files are spoilt (patterns); empty for a file.
        sealed: an artefact: its manifest is mostly made to fit what was spoilt.
    """

    good: str
    read: Read
    files: tuple[str, ...] = ()
    sealed: bool = False


def files_of(reader: Reader, path: Path) -> list[Path]:
    """Return the files of a copy that may be spoilt, in a fixed order."""
    found = {file for pattern in reader.files for file in path.glob(pattern) if file.is_file()}
    return sorted(file for file in found if file.suffix != ".html") or [path]


def command(*words: object) -> None:
    """Run a command of the program; what it tells its user as an error is raised as one.

    Raises:
        VocabForgeError: it ended with another code than 0 and said why.
    """
    done = invoke(str(words[0]), *words[1:])
    if done.exit_code == 0:
        return
    if isinstance(done.exception, SystemExit) and "Traceback" not in done.output and done.stderr.strip():
        raise VocabForgeError(done.output)
    raise done.exception or AssertionError(f"exit code {done.exit_code} and no word: {done.output!r}")


def _deepspeed(path: Path, goods: Path) -> Any:
    os.environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = str(path)
    return deepspeed_config(load_config(TrainConfig, goods / "train.yaml"), 1)


def _tokenizer(path: Path, goods: Path) -> Any:
    tokenizer = load_tokenizer(path)
    messages = [{"role": "user", "content": "Who?"}]
    return encode_prompt(tokenizer, "once"), tokenizer.decode([0, 1]), encode_prompt(tokenizer, messages)


def _converted(path: Path, goods: Path) -> Any:
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, {CACHE_VARIABLE: cache}):
        return gguf_folder(path)


def _facts(path: Path, goods: Path) -> Any:
    return target_fingerprint(path), open_head(path).rows()[:8]


target_tensors = functools.lru_cache(maxsize=2)(load_target_tensors)


def drafter(target: str, *, own: bool = False) -> Read:
    """A drafter for a good target; ``own``: the spoilt target drafts for itself, with its MTP module."""
    return lambda path, goods: load_drafter(
        path, target_tensors(goods / target), path if own else goods / target
    )


def as_servers(target: str) -> Read:
    """The folder as servers read it: what they break on is a finding, never an exception."""

    def read(path: Path, goods: Path) -> Any:
        shared = target_tensors(goods / target)
        side = ServedTarget(read_target_config(goods / target), 5, shared.embedding, shared.head)
        folder = servers.open_folder(path)
        names = [name for name in servers.READERS if servers.reader_of(name).matches(folder)]
        return [servers.read_as(name, folder, side) for name in names]

    return read


def _written_back(path: Path, goods: Path) -> None:
    """An MTP module written into a spoilt checkpoint, with the target."""
    words = ("--drafter", goods / "native-mtp", "--target", path, "--format", "mtp", "--with-target")
    command("export", *words, "--output", path.parent / "out")


def _inspect(path: Path, goods: Path) -> None:
    command("inspect", path, "--json")
    command("inspect", path)


def _capture(path: Path, goods: Path) -> Any:
    cache = CachedCapture(path)
    return [cache._opened(shard) for shards in cache._shards.values() for shard in shards]


def _corpus(path: Path, goods: Path) -> Any:
    """Rows are skipped and counted, unless nothing but good ones will do."""
    for _ in iter_documents([path], SourceOptions(), problems=Problems(shown=0)):
        pass
    return list(iter_documents([path], SourceOptions(strict=True)))


def _benchmark(path: Path, goods: Path) -> Any:
    benchmark_rows.MAX_BYTES = 8 << 20  # this child's alone: a bomb of 256 MiB takes seconds to unpack
    return load_benchmark(str(path))


def questions(name: str) -> Read:
    return lambda path, goods: read_format(name, path)


def _map(path: Path, goods: Path) -> Any:
    return subset_from_list(read_fr_spec(path), load_tokenizer(goods / "tokenizer"), source=path)


def _journal(path: Path, goods: Path) -> Any:
    with EvaluationJournal(path, {"a": 1}) as journal:
        return [journal.row(key) for key in list(journal.places)]


def _answers_log(path: Path, goods: Path) -> Any:
    with AnswerLog(path, {"a": 1}) as answers:
        return answers.get(KEY)


def _reply(path: Path, goods: Path) -> Any:
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # as ChatServer.complete
        raise DataError("its answer is not JSON", got=error) from error
    return client.read_answer(value, 3)


@contextlib.contextmanager
def answering(reply: Callable[[str, str, str], bytes | None]) -> Iterator[None]:
    """Inside, requests get what ``reply`` gives for host, method and path; None is a 404. No socket is opened."""
    http = client.http_library()

    def respond(request: Any) -> Any:
        content = reply(request.url.host, request.method, request.url.path)
        return http.Response(404 if content is None else 200, content=content or b"")

    def new_client(*, headers: Any, **_: Any) -> Any:
        return http.Client(headers=headers, transport=http.MockTransport(respond))

    library = SimpleNamespace(**{**vars(http), "Client": new_client})
    with mock.patch.object(client, "http_library", return_value=library):
        yield


def evaluated(*options: str) -> Read:
    """A whole evaluation of the spoilt server and a good plain one, without its charts, which take seconds."""

    def read(path: Path, goods: Path) -> None:
        asked: set[str] = set()

        def reply(host: str, method: str, place: str) -> bytes | None:
            name = place.rpartition("/")[2]
            file = f"{name}.json"
            if method == "POST":
                asked.add(host)
                file = "answer.events"
            elif name == "metrics":
                file = "after.metrics" if host in asked else "before.metrics"
            found = (goods / "server-plain" if host == "plain" else path) / file
            return found.read_bytes() if found.is_file() else None

        clock = SimpleNamespace(
            perf_counter=time.perf_counter, monotonic=time.monotonic, sleep=lambda seconds: None
        )
        with (
            answering(reply),
            mock.patch.multiple(generator, _LATE_S=0.0, _ATTEMPTS=2, time=clock),
            mock.patch.object(plots, "render_chart", return_value="<svg></svg>"),
            tempfile.TemporaryDirectory() as place,  # what an evaluation that stops keeps is not looked at
        ):
            words = ("--server", "eagle3=http://fast", "--server", "plain=http://plain", "--warmup", 0)
            asking = ("--benchmark", goods / "asked.jsonl", "--max-new-tokens", ANSWER_TOKENS)
            command("eval", *words, *asking, *options, "--output", Path(place) / "out")

    return read


def _hidden_states(path: Path, goods: Path) -> Any:
    """States of one document through a capture source."""
    model, rows = goods / "model", {"train": document_rows()}
    target = HFTarget.load(model)
    with tempfile.TemporaryDirectory() as shared:

        def reply(host: str, method: str, where: str) -> bytes | None:
            if method == "POST":
                shutil.copy(path / STATES_FILE, shared)
                return (path / "reply.json").read_bytes()
            return (path / "models.json").read_bytes()

        settings = ServerConfig(url="http://states", folder=Path(shared), retries=0, timeout_s=5.0)
        with answering(reply), mock.patch.multiple(capture_server, _FILE_S=0.02, _LAST_FILES_S=0.0):
            source = capture_server.ServerCapture(
                settings, target, model, target_fingerprint(model), rows, "owner"
            )
            with contextlib.closing(source):
                return source(to_tensors(rows["train"], [0], target.device), [("train", 0)])


_FOLDER = ("config.json", "*.safetensors", "*.bin", "*.pt", "*.gguf")
_WEIGHTS = ("config.json", "*.safetensors", "*.index.json")
_WORDS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_ALL = ("*",)
KINDS = sorted(kinds_of_the_package())
# Folders as other programs leave them -> the target that they draft for.
_DRAFTERS = {
    **{f"other-{name}": "known" if name == "gguf" else "model" for name in EXPORTS if name != "mtp"},
    **{f"speculators-{kind}": "model" for kind in BLOCKS},
    **dict.fromkeys(("block-dflash", "block-dspark", "pickled-eagle"), "model"),
}
_ARTEFACTS: dict[str, Read] = {
    "draft-head": lambda path, goods: load_head(path),
    "prepared-data": lambda path, goods: load_prepared(path),
    "step-00000007": lambda path, goods: load_latest(path.parent, {"seed": 5, "optim": {"lr": 0.25}}),
    "capture": _capture,
    "drafter": drafter("model"),
    **{f"native-{kind}": drafter("model") for kind in BLOCKS},
    "native-mtp": drafter("mtp-glm4_moe"),
}

READERS: dict[str, Reader] = {
    "recipe of train-drafter": Reader("train.yaml", lambda path, goods: load_config(TrainConfig, path)),
    "recipe of decoding": Reader("decoding.yaml", lambda path, goods: read_recipe(path)),
    "DeepSpeed configuration": Reader("deepspeed.json", _deepspeed),
    "tokenizer": Reader("model", _tokenizer, _WORDS),
    "lean target": Reader("model", lambda path, goods: load_target(path), _WEIGHTS),
    "target in shards": Reader("sharded", lambda path, goods: load_target(path), _WEIGHTS),
    "Hugging Face target": Reader("model", lambda path, goods: HFTarget.load(path), _WEIGHTS),
    "target in a GGUF file": Reader("target.gguf", _converted),
    "facts of a target": Reader("sharded", _facts, _WEIGHTS),
    "facts of one file": Reader("model", _facts, _WEIGHTS),
    **{f"drafter {name}": Reader(name, drafter(target), _FOLDER) for name, target in _DRAFTERS.items()},
    **{f"{name} as servers": Reader(name, as_servers(target), _FOLDER) for name, target in _DRAFTERS.items()},
    **{
        f"MTP module of {family}": Reader(f"mtp-{family}", drafter(f"mtp-{family}", own=True), _WEIGHTS)
        for family in MTP_FAMILIES
    },
    "MTP module written back": Reader("mtp-glm4_moe", _written_back, _WEIGHTS),
    **{name: Reader(name, read, _ALL, sealed=True) for name, read in _ARTEFACTS.items()},
    **{f"inspect {kind}": Reader(kind, _inspect, _ALL, sealed=True) for kind in KINDS},
    "manifest": Reader("subset", lambda path, goods: open_artifact(path), ("manifest.json",)),
    "conversations": Reader("chats.jsonl", _corpus),
    "conversations in a list": Reader("chats.json", _corpus),
    "texts": Reader("text.txt", _corpus),
    "Parquet": Reader("chats.parquet", _corpus),
    **{
        f"packed rows .{suffix}": Reader(f"questions.jsonl.{suffix}", _benchmark)
        for suffix in ("gz", "xz", "zst")
    },
    "questions spec-bench": Reader("questions.jsonl", questions("spec-bench")),
    "questions human-eval": Reader("tasks.jsonl", questions("human-eval")),
    "questions gsm8k": Reader("sums.json", questions("gsm8k")),
    "questions chat": Reader("chats.json", questions("chat")),
    "questions in Parquet": Reader("sums.parquet", _benchmark),
    "questions of any format": Reader("questions.jsonl", _benchmark),
    "FR-Spec list": Reader("map.pt", _map),
    "tree": Reader("tree.json", lambda path, goods: read_shape(path)),
    "results": Reader("evaluation", lambda path, goods: read_results(path), ("results.json",)),
    "comparison of methods": Reader(
        "evaluation", lambda path, goods: command("report", path), ("*.json", "*/*.jsonl"), True
    ),
    "training run": Reader("training", lambda path, goods: command("report-training", path), _ALL),
    "journal": Reader("journal", _journal, _ALL),
    "answers of regenerate": Reader("answers-log", _answers_log, _ALL),
    "reply of a server": Reader("reply.json", _reply),
    "evaluation of vLLM": Reader("server-vllm", evaluated(), _ALL),
    "evaluation of vLLM, completions": Reader("server-raw", evaluated("--prompt-format", "raw"), _ALL),
    "evaluation of SGLang": Reader("server-sglang", evaluated(), _ALL),
    "hidden states of a server": Reader("server-states", _hidden_states, _ALL),
}
