"""States from a running server: vLLM with ``HiddenStatesConnector`` writes one file per document.

The server and this process share a folder. When ``buffer_gb`` of states are unread, the client pauses its
requests until some have been read. Files are deleted after reading.
"""

from __future__ import annotations

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
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ...core.errors import DataError, MismatchError, UsageError, VocabForgeError
from ...corpus.prepared.packing import PackedRows
from ...corpus.regenerate.server import Refused, Server, TryAgain, Unusable, api_key, base_url
from ...models.target.documents import DocumentSpan, document_spans
from ...models.target.head import TargetHead
from ...models.target.hf import HFTarget, load_final_norm, read_target_config
from ...models.target.load import dtype_name
from ...models.target.text_config import text_config
from .config import ServerConfig
from .online import CapturedBatch, Key, RowBatch

_POLL_S = 0.005
_FILE_S = 30.0  # between a response and its file; vLLM writes it in its next step
_LONGEST_WAIT_S = 30.0
_LONGEST_NAME = 255
_LAST_FILES_S = 2.0  # on closing, wait for running requests, whose files would otherwise not be deleted


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

    def start_command(self, folder: Path) -> str:
        """Return the command that starts the server."""
        speculative = {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": self.layers}},
        }
        transfer = {
            "kv_connector": "HiddenStatesConnector",
            "kv_connector_module_path": "vocabforge.serve.vllm.hidden_states",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(folder.absolute())},
        }
        return (
            f"vllm serve {self.path} --dtype {dtype_name(self.dtype)} --max-model-len {self.length + 1} "
            f"--speculative-config '{json.dumps(speculative)}' --kv-transfer-config '{json.dumps(transfer)}'"
        )


@dataclass(frozen=True)
class _Asked:
    """Requested row with one request per document; its files have ``bytes`` in total."""

    key: Key
    documents: list[tuple[DocumentSpan, list[int], Future[Path]]]
    bytes: int


class ServerCapture:
    """Capture source that requests states from a server; see :meth:`expect` for prefetching.

    Args:
        rows: split -> packed rows, indexed by the row numbers of keys.
        norm: final norm of the target.
        owner: identifies this command among those that share the folder; files left by a killed run of it are
            removed.
        budget_bytes: memory for the states of held-out rows, which recur.

    Raises:
        VocabForgeError: the server cannot be reached.
    """

    def __init__(
        self,
        settings: ServerConfig,
        target: HFTarget | TargetHead,
        served: ServedStates,
        norm: nn.Module,
        *,
        rows: Mapping[str, PackedRows],
        owner: str,
        budget_bytes: int = 0,
    ) -> None:
        self._settings, self._target, self._rows = settings, target, rows
        self._served, self._norm = served, norm
        self._columns = [served.layers.index(layer + 1) for layer in target.aux_layers]
        self._kept: dict[Key, tuple[Tensor, Tensor]] = {}
        self._memory = budget_bytes
        self._room = int(settings.buffer_gb * 10**9)
        self._upcoming: Iterator[Key] = iter(())
        self._next: Key | None = None
        self._asked: deque[_Asked] = deque()
        self._stop, self._arrived = threading.Event(), False
        self._owner = f"vocabforge-{hashlib.sha256(owner.encode()).hexdigest()[:12]}"
        self._run, self._numbers = secrets.token_hex(4), itertools.count()  # shared by the threads
        if not settings.folder.is_dir():
            raise UsageError(
                "the folder that the server writes to is not there",
                got=settings.folder,
                remedy=f"start the server first: {served.start_command(settings.folder)}",
            )
        self._server = Server(
            base_url(settings.url), key=api_key(settings.api_key_env), timeout=settings.timeout_s
        )
        self._pool = ThreadPoolExecutor(settings.concurrency)
        self._busy = threading.Semaphore(settings.concurrency)
        self._remove_files()
        try:
            self._model = (self._server.models() or [""])[0]
        except (TryAgain, Unusable) as error:
            raise self._silent(str(error)) from error

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
            states = [self._kept[key] if one is None else self._read(one) for key, one in zip(keys, taken)]
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
        for _ in range(self._settings.concurrency):
            self._busy.acquire(timeout=max(until - time.monotonic(), 0.0))
        self._stop.set()
        self._server.close()
        self._remove_files()

    def _remove_files(self) -> None:
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
            unread = sum(one.bytes for one in self._asked)
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
            documents.append((span, ids, self._pool.submit(self._answer, ids)))
        return _Asked(key, documents, sum(map(len, spans)) * self._served.token_bytes())

    @torch.no_grad()
    def _read(self, asked: _Asked) -> tuple[Tensor, Tensor]:
        """Read features (T, n_aux * H) and hidden states (T, H) of a row to the CPU and delete its files."""
        target, length = self._target, self._rows[asked.key[0]].input_ids.shape[1]
        features = torch.zeros(length, len(self._columns) * target.hidden_size, dtype=target.dtype)
        hidden = torch.zeros(length, target.hidden_size, dtype=target.dtype)
        for span, ids, answer in asked.documents:
            file = answer.result()
            states = read_states(file, self._served, ids, self._settings.folder)  # (n, L, H)
            features[span.start : span.stop] = states[:, self._columns].flatten(1)
            hidden[span.start : span.stop] = self._norm(states[:, -1].to(target.device)).cpu()
            file.unlink()
        size = sum(t.numel() * t.element_size() for t in (features, hidden))
        if asked.key[0] != "train" and size <= self._memory:
            self._memory -= size
            self._kept[asked.key] = (features, hidden)
        return features, hidden

    def _answer(self, ids: list[int]) -> Path:
        with self._busy:
            return self._request(ids)

    def _request(self, ids: list[int]) -> Path:
        """Request a document and return its file once it exists; runs in a thread."""
        reason = "the command ended"
        for attempt in range(self._settings.retries + 1):
            if self._stop.is_set():
                break
            try:
                return self._attempt(ids)
            except TryAgain as error:
                reason, wait = str(error), min(0.5 * 2**attempt, _LONGEST_WAIT_S)
                if attempt < self._settings.retries:
                    self._stop.wait(max(wait, error.wait or 0.0))
            except Refused as error:
                raise VocabForgeError(
                    "the server refuses a document",
                    got=str(error),
                    source=f"a document of {len(ids):,} tokens, {self._settings.url}",
                    remedy=f"start it with --max-model-len {self._served.length + 1} or more",
                ) from error
            except Unusable as error:
                reason = str(error)
                break
        raise self._silent(reason)

    def _attempt(self, ids: list[int]) -> Path:
        body = {
            "model": self._model,
            "prompt": ids,
            "max_tokens": 1,
            "temperature": 0,
            "request_id": f"{self._owner}-{self._run}-{next(self._numbers)}",
        }
        reply = self._server.exchange("POST", f"{self._server.url}/completions", json.dumps(body).encode())
        try:
            named = (json.loads(reply).get("kv_transfer_params") or {}).get("hidden_states_path")
        except (ValueError, AttributeError, RecursionError) as error:
            raise TryAgain("its answer is not JSON") from error
        folder = self._settings.folder
        if not isinstance(named, str):
            raise VocabForgeError(
                "the server answers without hidden states",
                got="no kv_transfer_params.hidden_states_path: it runs without a connector",
                source=self._settings.url,
                remedy=f"start it with: {self._served.start_command(folder)}",
            )
        name = PurePosixPath(named).name
        if name in ("", "..") or not name.isprintable() or len(name.encode()) > _LONGEST_NAME:
            raise TryAgain(f"it names no file: {named[:80]!r}")
        file = folder / name
        until = time.monotonic() + _FILE_S
        while not file.is_file():
            if time.monotonic() > until and not self._arrived:
                raise VocabForgeError(
                    "no file of hidden states arrives",
                    got=f"the server names {named}",
                    expected=file,
                    source=self._settings.url,
                    remedy=f"both must share one folder; check the server's log. Start the server with: "
                    f"{self._served.start_command(folder)}",
                )
            if time.monotonic() > until or self._stop.wait(_POLL_S):
                raise TryAgain(f"no file {file.name} came after its answer")
        self._arrived = True
        return file

    def _silent(self, reason: str) -> VocabForgeError:
        return VocabForgeError(
            "the server gives no hidden states",
            got=reason,
            source=self._settings.url,
            remedy="check that it runs and accepts the key, then run the same command again to resume",
        )


def server_capture(
    settings: ServerConfig,
    target: HFTarget | TargetHead,
    path: Path,
    fingerprint: str,
    rows: Mapping[str, PackedRows],
    owner: str,
    budget_bytes: int = 0,
) -> ServerCapture:
    """Create a :class:`ServerCapture` for the auxiliary layers of ``target``, whose folder is ``path``."""
    last = int(text_config(read_target_config(path)).num_hidden_layers)
    served = ServedStates(
        path=path,
        fingerprint=fingerprint,
        layers=tuple(sorted({*(layer + 1 for layer in target.aux_layers), last})),
        hidden_size=target.hidden_size,
        dtype=target.dtype,
        length=next(iter(rows.values())).input_ids.shape[1],
    )
    norm = load_final_norm(path, target.dtype, target.device)
    return ServerCapture(settings, target, served, norm, rows=rows, owner=owner, budget_bytes=budget_bytes)


def read_states(file: Path, served: ServedStates, ids: Sequence[int], folder: Path) -> Tensor:
    """Read the states (T, L, H) of a document's file and check that they match the request.

    Raises:
        DataError: the file cannot be read, or its states are not finite.
        MismatchError: the connector, target, layers, dtype or tokens differ.
    """
    try:
        with safe_open(str(file), framework="pt") as handle:
            meta: Mapping[str, Any] = handle.metadata() or {}
            tensors = {name: handle.get_tensor(name) for name in ("hidden_states", "token_ids")}
            sent = [int(one) for one in tensors["token_ids"].flatten().tolist()]
    except (SafetensorError, OSError, ValueError, OverflowError) as error:  # incl. ids that are not integers
        raise DataError("a file of hidden states cannot be read", got=error, source=file) from error
    states = tensors["hidden_states"]
    pairs = {
        "target": (meta.get("target", "none named")[:12], served.fingerprint[:12]),
        "layers": (meta.get("layers", "none named"), json.dumps(list(served.layers))),
        "dtype": (dtype_name(states.dtype), dtype_name(served.dtype)),
        "shape": (tuple(states.shape), (len(ids), len(served.layers), served.hidden_size)),
        "token ids": (_ids(sent), _ids(ids)),
    }
    wrong = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if wrong:
        raise MismatchError(
            "the server's hidden states are not those that were asked for",
            got="; ".join(f"{name} {pair[0]}" for name, pair in wrong.items()),
            expected="; ".join(f"{name} {pair[1]}" for name, pair in wrong.items()),
            source=file,
            remedy=f"start it with: {served.start_command(folder)}",
        )
    if not bool(states.isfinite().all()):
        raise DataError(
            "the server's hidden states are not finite",
            got="NaN or infinity",
            source=file,
            remedy="check the server's answers; another dtype of the target may help",
        )
    return states


def _ids(ids: Sequence[int]) -> str:
    digest = hashlib.sha256(repr(list(ids)).encode()).hexdigest()[:8]
    return f"{str(list(ids[:3]))[:-1]}, ...] ({len(ids):,}, sha256 {digest}…)"
