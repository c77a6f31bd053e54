"""States from running servers: vLLM with ``HiddenStatesConnector`` writes one file per document.

The files are read from a folder that the server and this process share, or fetched over HTTP. When
``buffer_gb`` of states are unread, the client pauses its requests until some have been read. Files are deleted
once they are read or fetched.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlsplit

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from ...core.errors import DataError, UsageError, VocabForgeError
from ...corpus.prepared.packing import PackedRows
from ...corpus.regenerate.server import Refused, Server, TryAgain, Unusable, api_key, base_url
from ...models.target.documents import DocumentSpan, document_spans
from ...models.target.head import TargetHead
from ...models.target.hf import HFTarget, load_final_norm
from ...models.target.load import dtype_name, read_target_config
from ...models.target.text_config import text_config
from .cache import check_finite, check_same
from .config import STATES_PROTOCOL, ServerConfig
from .online import CapturedBatch, Key, RowBatch

_POLL_S = 0.005
_FILE_S = 30.0  # between a response and its file; vLLM writes it in its next step
_LONGEST_WAIT_S = 30.0
_LONGEST_NAME = 255
_LAST_FILES_S = 2.0  # on closing, wait for running requests, whose files would otherwise not be deleted
_OUT = 3  # failures in a row after which other servers are preferred


@dataclass(frozen=True)
class ServedStates:
    """Required configuration of the server and contents of its files.

    Attributes:
        path, fingerprint: folder and fingerprint of the target.
        layers: ascending, in vLLM's numbering: layer i is the input of decoder layer i, our output i - 1. The
            last one is the number of layers: the last output before the final norm.
        length: length of packed rows.
    """

    path: Path
    fingerprint: str
    layers: tuple[int, ...]
    hidden_size: int
    dtype: torch.dtype
    length: int

    def token_bytes(self) -> int:
        """Return the bytes per token in a file."""
        return len(self.layers) * self.hidden_size * self.dtype.itemsize + 8

    def start_command(self, folder: Path | None) -> str:
        """Return the command that starts the server, without a folder one that serves its files over HTTP."""
        speculative = {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": self.layers}},
        }
        transfer = {
            "kv_connector": "HiddenStatesConnector",
            "kv_connector_module_path": "vocabforge.serve.vllm.hidden_states",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(folder.absolute())}
            if folder is not None
            else {"shared_storage_path": "/dev/shm/states", "states_address": "0.0.0.0:8100"},
        }
        key = "VLLM_API_KEY=KEY " if folder is None else ""
        return (
            f"{key}vllm serve {self.path} --dtype {dtype_name(self.dtype)} --max-model-len {self.length + 1} "
            f"--speculative-config '{json.dumps(speculative)}' --kv-transfer-config '{json.dumps(transfer)}'"
        )


@dataclass(frozen=True)
class _Asked:
    """Requested row with one request per document; its files have ``bytes`` in total."""

    key: Key
    documents: list[tuple[DocumentSpan, list[int], Future[Path | bytes]]]
    bytes: int


class _Gone(TryAgain):
    """A file will not come; its document must be requested again."""


class _StatesServer(Server):
    """Server with its load: requests under way, and attempts that failed since the last success."""

    def __init__(self, url: str, settings: ServerConfig) -> None:
        super().__init__(base_url(url), key=api_key(settings.api_key_env), timeout=settings.timeout_s)
        self.slots = threading.Semaphore(settings.concurrency)
        self.load = self.failures = 0
        self.model = ""

    def file_url(self, port: int, name: str) -> str:
        """Return the address of a file at a port of this server's host."""
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        return f"{parts.scheme}://{host}:{port}/{quote(name)}"

    def download(self, url: str, data: bytearray) -> str:
        """Append a file's bytes from ``len(data)`` on and return its SHA-256.

        Raises:
            TryAgain: the transfer broke; ``data`` has what arrived.
            Unusable: the key is wrong.
            VocabForgeError: something else answers at this address.
        """
        rest = {"Range": f"bytes={len(data)}-"}
        with self._named_errors(), self._client.stream("GET", url, headers=rest) as reply:
            said = reply.headers.get("server", "no name")
            if said != STATES_PROTOCOL and reply.status_code < 500:
                raise VocabForgeError(
                    "this address does not serve hidden states, or another version does",
                    got=f"{reply.status_code} of {said}",
                    expected=STATES_PROTOCOL,
                    source=url,
                    remedy="use the same version of VocabForge in the server's environment and here",
                )
            if reply.status_code not in (200, 206):
                reply.read()
                if reply.status_code in (404, 507):
                    raise _Gone(f"{reply.status_code} {self._quote(reply.content)}")
                self._check(reply)
            if reply.status_code == 200:
                data.clear()
            elif not reply.headers.get("content-range", "").startswith(f"bytes {len(data)}-"):
                raise _Gone("another part of the file arrives")
            for chunk in reply.iter_raw():
                data += chunk
            return str(reply.headers.get("etag", "")).strip('"')


class ServerCapture:
    """Capture source that requests states from servers; see :meth:`expect` for prefetching.

    Args:
        path, fingerprint: folder and fingerprint of the target.
        rows: split -> packed rows, indexed by the row numbers of keys.
        owner: identifies this command among those that share the folder; files left by a killed run of it are
            removed.
        budget_bytes: memory for the states of held-out rows, which recur.

    Raises:
        VocabForgeError: a server cannot be reached.
    """

    def __init__(
        self,
        settings: ServerConfig,
        target: HFTarget | TargetHead,
        path: Path,
        fingerprint: str,
        rows: Mapping[str, PackedRows],
        owner: str,
        budget_bytes: int = 0,
    ) -> None:
        self._settings, self._target, self._rows = settings, target, rows
        last = int(text_config(read_target_config(path)).num_hidden_layers)
        self._served = served = ServedStates(
            path=path,
            fingerprint=fingerprint,
            layers=tuple(sorted({*(layer + 1 for layer in target.aux_layers), last})),
            hidden_size=target.hidden_size,
            dtype=target.dtype,
            length=next(iter(rows.values())).input_ids.shape[1],
        )
        self._start = f"start it with: {served.start_command(settings.folder)}"
        self._norm = load_final_norm(path, target.dtype, target.device)
        self._columns = [served.layers.index(layer + 1) for layer in target.aux_layers]
        self._kept: dict[Key, tuple[Tensor, Tensor]] = {}
        self._memory = budget_bytes
        self._room = int(settings.buffer_gb * 10**9)
        self._upcoming: Iterator[Key] = iter(())
        self._next: Key | None = None
        self._asked: deque[_Asked] = deque()
        self._stop, self._arrived, self._lock = threading.Event(), False, threading.Lock()
        self._owner = f"vocabforge-{hashlib.sha256(owner.encode()).hexdigest()[:12]}"
        self._run, self._numbers = secrets.token_hex(4), itertools.count()  # shared by the threads
        if settings.folder is not None and not settings.folder.is_dir():
            raise UsageError(
                "the folder that the server writes to is not there",
                got=settings.folder,
                remedy=f"start the server first: {served.start_command(settings.folder)}",
            )
        self._servers = [_StatesServer(url, settings) for url in settings.urls]
        self._pool = ThreadPoolExecutor(settings.concurrency * len(self._servers))
        self._remove_files()
        for server in self._servers:
            try:
                server.model = (server.models() or [""])[0]
            except (TryAgain, Unusable) as error:
                raise self._silent(str(error), server.url) from error

    def expect(self, keys: Iterable[Key]) -> None:
        """Prefetch rows in the order of their later use, as far as the buffer has room."""
        self._upcoming, self._next = iter(keys), None
        self._fill()

    def __call__(self, rows: RowBatch, keys: Sequence[Key]) -> CapturedBatch:
        """Return the states of the rows, which must be the rows identified by ``keys``.

        Raises:
            VocabForgeError: the server does not respond or returns no states.
            MismatchError: the server has another target, other layers or another dtype.
        """
        try:
            taken = [None if key in self._kept else self._take(key) for key in keys]
            states = [self._read(asked) if asked else self._kept[key] for key, asked in zip(keys, taken)]
            self._fill()
        except BaseException:
            self.close()
            raise
        device = rows.input_ids.device
        features, hidden = (torch.stack(parts).to(device) for parts in zip(*states))
        return CapturedBatch(**vars(rows), features=features, hidden=hidden)

    def close(self) -> None:
        """Cancel running requests and remove unread files."""
        if self._stop.is_set():
            return
        self._pool.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + _LAST_FILES_S
        for server in self._servers * self._settings.concurrency:
            server.slots.acquire(timeout=max(until - time.monotonic(), 0.0))
        self._stop.set()
        for server in self._servers:
            server.close()
        self._remove_files()

    def _remove_files(self) -> None:
        if self._settings.folder is not None:
            for file in self._settings.folder.glob(f"*{self._owner}-*"):
                file.unlink(missing_ok=True)

    def _take(self, key: Key) -> _Asked:
        if self._asked and self._asked[0].key == key:
            return self._asked.popleft()
        return self._ask(key)

    def _fill(self) -> None:
        while True:
            if self._next is None:
                self._next = next(self._upcoming, None)
            if self._next is None:
                return
            split, row = self._next
            tokens = int((self._rows[split].document[row] != 0).sum())
            unread = sum(asked.bytes for asked in self._asked)
            if self._asked and unread + tokens * self._served.token_bytes() > self._room:
                return
            self._asked.append(self._ask(self._next))
            self._next = None

    def _ask(self, key: Key) -> _Asked:
        packed, number = self._rows[key[0]], key[1]
        spans = document_spans(torch.from_numpy(packed.document[number : number + 1].astype("int64")))
        documents = []
        for span in spans:
            ids = packed.input_ids[number][span.start : span.stop].tolist()
            documents.append((span, ids, self._pool.submit(self._request, ids)))
        return _Asked(key, documents, sum(map(len, spans)) * self._served.token_bytes())

    @torch.no_grad()
    def _read(self, asked: _Asked) -> tuple[Tensor, Tensor]:
        """Read features (T, n_aux * H) and hidden states (T, H) of a row to the CPU and delete its files."""
        target, length = self._target, self._rows[asked.key[0]].input_ids.shape[1]
        features = torch.zeros(length, len(self._columns) * target.hidden_size, dtype=target.dtype)
        hidden = torch.zeros(length, target.hidden_size, dtype=target.dtype)
        for span, ids, answer in asked.documents:
            file = answer.result()
            states = read_states(file, self._served, ids, self._start)  # (n, L, H)
            check_finite(
                [("the server's hidden states", states.flatten(1))],
                asked.key,
                source=file if isinstance(file, Path) else "the servers' answers",
                remedy="check the server's answers; another dtype of the target may help",
            )
            features[span.start : span.stop] = states[:, self._columns].flatten(1)
            hidden[span.start : span.stop] = self._norm(states[:, -1].to(target.device)).cpu()
            if isinstance(file, Path):
                file.unlink()
        size = sum(t.numel() * t.element_size() for t in (features, hidden))
        if asked.key[0] != "train" and size <= self._memory:
            self._memory -= size
            self._kept[asked.key] = (features, hidden)
        return features, hidden

    def _request(self, ids: list[int]) -> Path | bytes:
        """Request a document and return its file once it exists, or its content; runs in a thread."""
        reason, where = "the command ended", " ".join(self._settings.urls)
        for attempt in range(self._settings.retries + 1):
            if self._stop.is_set():
                break
            with self._lock:
                server = min(self._servers, key=lambda server: (server.failures >= _OUT, server.load))
                server.load += 1
            try:
                with server.slots:
                    states = self._attempt(server, ids)
                server.failures = 0
                return states
            except TryAgain as error:
                reason, where, server.failures = str(error), server.url, server.failures + 1
                if attempt < self._settings.retries:
                    self._pause(attempt, error)
            except Refused as error:
                raise VocabForgeError(
                    "the server refuses a document",
                    got=str(error),
                    source=f"a document of {len(ids):,} tokens, {server.url}",
                    remedy=f"start it with --max-model-len {self._served.length + 1} or more",
                ) from error
            except Unusable as error:
                raise self._silent(str(error), server.url) from error
            finally:
                with self._lock:
                    server.load -= 1
        raise self._silent(reason, where)

    def _pause(self, attempt: int, error: TryAgain) -> None:
        self._stop.wait(max(min(0.5 * 2**attempt, _LONGEST_WAIT_S), error.wait or 0.0))

    def _attempt(self, server: _StatesServer, ids: list[int]) -> Path | bytes:
        body = {
            "model": server.model,
            "prompt": ids,
            "max_tokens": 1,
            "temperature": 0,
            "request_id": f"{self._owner}-{self._run}-{next(self._numbers)}",
        }
        reply = server.exchange("POST", f"{server.url}/completions", json.dumps(body).encode())
        try:
            params = json.loads(reply).get("kv_transfer_params") or {}
            named, port = params.get("hidden_states_path"), params.get("hidden_states_port")
        except (ValueError, AttributeError, RecursionError) as error:
            raise TryAgain("its answer is not JSON") from error
        folder = self._settings.folder
        if not isinstance(named, str):
            raise VocabForgeError(
                "the server answers without hidden states",
                got="no kv_transfer_params.hidden_states_path: it runs without a connector",
                source=server.url,
                remedy=self._start,
            )
        name = PurePosixPath(named).name
        if name in ("", "..") or not name.isprintable() or len(name.encode()) > _LONGEST_NAME:
            raise TryAgain(f"it names no file: {named[:80]!r}")
        if folder is None:
            if type(port) is not int or not 0 < port < 1 << 16:
                raise VocabForgeError(
                    "the server does not serve its states over HTTP",
                    got=f"kv_transfer_params.hidden_states_port: {str(port)[:80]}",
                    expected="a port",
                    source=server.url,
                    remedy=f"give the folder that it writes to (capture.server.folder), or {self._start}",
                )
            return self._fetch(server, server.file_url(port, name))
        file = folder / name
        until = time.monotonic() + _FILE_S
        while not file.is_file():
            if time.monotonic() > until and not self._arrived:
                raise VocabForgeError(
                    "no file of hidden states arrives",
                    got=f"the server names {named}",
                    expected=file,
                    source=server.url,
                    remedy=f"both must share one folder; check the server's log and {self._start}",
                )
            if time.monotonic() > until or self._stop.wait(_POLL_S):
                raise TryAgain(f"no file {file.name} came after its answer")
        self._arrived = True
        return file

    def _fetch(self, server: _StatesServer, url: str) -> bytes:
        """Download a file, resuming a broken transfer, and have the server delete it."""
        data, failed = bytearray(), 0
        while True:
            before = len(data)
            try:
                digest = server.download(url, data)
                break
            except TryAgain as error:
                failed = 0 if len(data) > before else failed + 1
                if isinstance(error, _Gone) or self._stop.is_set() or (failed and len(self._servers) > 1):
                    raise TryAgain(f"{url}: {error}", error.wait) from error
                if failed > self._settings.retries:
                    raise self._silent(str(error), url) from error
                if failed:
                    self._pause(failed - 1, error)
        with contextlib.suppress(TryAgain, Refused, Unusable):  # it expires
            server.exchange("DELETE", url, None)
        if hashlib.sha256(data).hexdigest() != digest:
            raise TryAgain(f"{url}: its SHA-256 differs from the server's")
        return bytes(data)

    def _silent(self, reason: str, where: str) -> VocabForgeError:
        return VocabForgeError(
            "the server gives no hidden states",
            got=reason,
            source=where,
            remedy="check that it runs, is reachable from here and accepts the key, then run the same command "
            "again to resume",
        )


def read_states(file: Path | bytes, served: ServedStates, ids: Sequence[int], remedy: str) -> Tensor:
    """Read the states (T, L, H) of a document's file and check that they match the request.

    Raises:
        DataError: the file cannot be read.
        MismatchError: the connector, target, layers, dtype or tokens differ.
    """
    source = file if isinstance(file, Path) else "an answer of the server"
    try:
        data = file.read_bytes() if isinstance(file, Path) else file
        tensors = load(data)
        meta = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
        states = tensors["hidden_states"]
        sent = [int(token) for token in tensors["token_ids"].flatten().tolist()]
    except (SafetensorError, OSError, ValueError, OverflowError, KeyError) as error:  # incl. ids not integers
        raise DataError("a file of hidden states cannot be read", got=error, source=source) from error
    pairs = {
        "target": (meta.get("target", "none named"), served.fingerprint),
        "layers": (meta.get("layers", "none named"), json.dumps(list(served.layers))),
        "dtype": (dtype_name(states.dtype), dtype_name(served.dtype)),
        "shape": (tuple(states.shape), (len(ids), len(served.layers), served.hidden_size)),
        "token ids": (_ids(sent), _ids(ids)),
    }
    message = "the server's hidden states are not those that were asked for"
    check_same(message, pairs, source=source, remedy=remedy)
    return states


def _ids(ids: Sequence[int]) -> str:
    digest = hashlib.sha256(repr(list(ids)).encode()).hexdigest()[:8]
    return f"{str(list(ids[:3]))[:-1]}, ...] ({len(ids):,}, sha256 {digest}…)"
