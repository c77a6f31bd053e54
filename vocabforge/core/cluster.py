"""Workers of a Ray cluster: processes on one or many machines that do pieces of a command's work.

The command submits pieces, takes their results and alone writes what others read. A piece whose worker dies
is given to another worker. Ray starts, places and watches the processes.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from .console import say
from .errors import UsageError, VocabForgeError
from .journal import differences
from .progress import hushed
from .provenance import package_versions
from .threads import core_count

_ATTEMPTS = 4  # of a piece whose workers die, and of the first worker to start
_STORE_BYTES = 256 << 20  # memory for results in a cluster that is started for one command
_CONNECT_S, _WAIT_S = 10.0, 20.0


class Piece:
    """One call of a function in a worker."""

    def __init__(self, work: Callable[..., Any], given: tuple[Any, ...]) -> None:
        self.work, self.given, self.deaths = work, given, 0
        self.done, self.value = False, None


class Cluster:
    """Context manager: a connection to a Ray cluster, and one worker process per ``cpus`` and ``gpus`` of it.

    Workers start while pieces wait: as many as the cluster has room for. One more is requested, for which a
    cluster that scales itself adds a machine.

    Args:
        address: see :data:`~vocabforge.core.config.RAY`. A connection that this process already has is used.
        queue: pieces that a worker is given at once; 2 if the caller itself computes between results.

    Raises:
        VocabForgeError: the cluster cannot be reached.
    """

    def __init__(self, address: str, *, queue: int = 1) -> None:
        self._ray, self._mine = _connect(address)
        self._queue = queue
        self._cpus, self._gpus = 1, 0
        self._start = Piece(_Worker.begin, ())  # the first call of every worker; never done
        self.use(lambda: None)
        self._waiting: deque[Piece] = deque()
        self._busy: dict[Any, tuple[Any, Piece]] = {}  # reply -> worker, piece
        self._idle: list[Any] = []
        self._hosts: dict[Any, str] = {}  # of the workers that are ready
        self._most = 1 << 30  # fewer after a worker ran out of memory
        self._since = time.monotonic()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in {*self._hosts, *(worker for worker, _ in self._busy.values())}:
            with contextlib.suppress(Exception):  # the cluster may be gone
                self._ray.kill(worker)
        if self._mine:
            self._ray.shutdown()

    @property
    def has_gpus(self) -> bool:
        """Whether the cluster has a GPU now."""
        return self._ray.cluster_resources().get("GPU", 0) >= 1

    @property
    def ahead(self) -> int:
        """Number of pieces that keep all workers busy."""
        return (self._queue + 1) * max(self._room(), 1)

    def use(self, begin: Callable[[], Any], *, cpus: int = 1, gpus: int = 0) -> None:
        """Set what each worker loads once, ``begin()``, and occupies; before the first piece.

        The result of ``begin`` is the first argument of every piece's function.
        """
        nodes = [node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]]
        self._cpus, self._gpus = min(cpus, int(max(nodes, default=0)) or cpus), gpus
        self._begin = self._ray.put(begin)

    def submit(self, work: Callable[..., Any], *given: Any) -> Piece:
        """Queue the call ``work(begun, *given)``; the arguments are kept until it is done."""
        self._waiting.append(Piece(work, given))
        return self._waiting[-1]

    def get(self, piece: Piece) -> Any:
        """Wait for a piece and return its result.

        Raises:
            VocabForgeError: the function raised it, or the piece's workers died too often.
        """
        while not piece.done:
            self._turn()
        if isinstance(piece.value, Exception):
            raise piece.value
        return piece.value

    def as_completed(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield pieces as they are done; :meth:`get` returns or raises their results.

        A few more than workers are taken from ``pieces`` at once, so that it may submit them one by one.
        """
        rest, left = iter(pieces), set[Piece]()
        while left := {*left, *islice(rest, max(self.ahead - len(left), 0))}:
            done = {piece for piece in left if piece.done} or left.intersection(self._turn())
            left -= done
            yield from done

    def in_order(self, work: Callable[..., Any], given: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield the results of many calls in order; a few more calls than workers are begun or kept."""
        begun: deque[Piece] = deque()
        for arguments in given:
            begun.append(self.submit(work, *arguments))
            while len(begun) > self.ahead:
                yield self.get(begun.popleft())
        while begun:
            yield self.get(begun.popleft())

    def _room(self) -> int:
        has = self._ray.cluster_resources()
        fit = int(has.get("CPU", 0) // self._cpus)
        return min(fit, int(has.get("GPU", 0) // self._gpus)) if self._gpus else fit

    def _turn(self) -> list[Piece]:
        """Start workers, give pieces to the idle ones, and take replies; return the pieces that are done."""
        starting = sum(piece is self._start for _, piece in self._busy.values())
        wanted = len(self._waiting) - len(self._idle) - starting * self._queue
        if wanted > 0:
            workers = len(self._hosts) + starting
            room = min(max(self._room(), len(self._hosts) + 1), self._most) - workers
            for _ in range(min(wanted, room)):
                self._begin_worker()
        while self._waiting and self._idle:
            worker, piece = self._idle.pop(0), self._waiting.popleft()
            self._busy[worker.run.remote(piece.work, piece.given)] = worker, piece
        replies, _ = self._ray.wait([*self._busy], timeout=1.0)
        taken = [(reply, *self._busy.pop(reply)) for reply in replies]
        for finished in taken:
            self._take(*finished)
        if not self._hosts and time.monotonic() > self._since + _WAIT_S:
            has = self._ray.cluster_resources()
            say(
                f"Waiting for a worker of {self._cpus} CPUs and {self._gpus} GPUs: the cluster has "
                f"{has.get('CPU', 0):g} and {has.get('GPU', 0):g}, all busy, too few, or still starting"
            )
            self._since = float("inf")
        return [piece for _, _, piece in taken if piece.done]

    def _begin_worker(self) -> None:
        kind = self._ray.remote(_Worker).options(num_cpus=self._cpus, num_gpus=self._gpus, max_restarts=0)
        worker = kind.remote()
        # In a list, so that the worker reads it after it has compared versions.
        given = _software(), os.getcwd(), self._cpus, [self._begin]
        self._busy[worker.begin.remote(*given)] = worker, self._start

    def _take(self, reply: Any, worker: Any, piece: Piece) -> None:
        errors = self._ray.exceptions
        try:
            host, value, said = self._ray.get(reply)
        except (errors.RayActorError, errors.OutOfMemoryError, errors.WorkerCrashedError) as error:
            self._lost(worker, piece, error)
            return
        except errors.RayTaskError as error:  # a bug, or a worker without this package
            raise error.cause if isinstance(error.cause, Exception) else error from error
        for line in said:
            say(line)
        if piece is self._start:
            if isinstance(value, Exception):
                raise value
            self._hosts[worker], piece.deaths = host, 0
            self._idle += [worker] * self._queue
            if len(self._hosts) == self._room():
                say(f"Workers at work: {len(self._hosts)}, on machines: {len(set(self._hosts.values()))}")
            return
        piece.done, piece.value = True, value
        self._idle.append(worker)

    def _lost(self, worker: Any, piece: Piece, error: Exception) -> None:
        host, starting = self._hosts.pop(worker, None), piece is self._start
        self._idle = [idle for idle in self._idle if idle is not worker]
        if not starting:
            self._waiting.appendleft(piece)
            if host is None:  # the worker's first reply has told
                return
        told = " ".join(str(error).split())
        hungry = isinstance(error, self._ray.exceptions.OutOfMemoryError) or "low on memory" in told
        cause = "ran out of memory" if hungry else "died"
        what = "while starting" if starting else "at the same piece of work"
        piece.deaths += 1
        where = "" if host is None else f" on {host}"
        say(f"A worker{where} {cause} {what} ({piece.deaths} of {_ATTEMPTS} attempts)")
        last = piece.deaths == _ATTEMPTS
        if hungry or (last and starting):
            self._most = max(1, len(self._hosts))  # go on with the others
        if last and not (starting and self._hosts):
            remedy = "see Ray's logs on that machine (/tmp/ray/session_latest/logs)"
            if starting:
                remedy = f"install the same version of VocabForge on every machine; {remedy}"
            if hungry:
                remedy = "give each worker more memory, or the work in smaller pieces"
            got = told if hungry else str(error).strip().rpartition("\n")[2]  # the cause
            raise VocabForgeError(
                f"{_ATTEMPTS} workers {cause} {what}", got=got[:400], source=host, remedy=remedy
            ) from error


class _Worker:
    """Process of the cluster. Every reply is a host, a result or a VocabForgeError, and lines to say."""

    _begun: Any = None

    def begin(self, software: Any, folder: str, cpus: int, begin: list[Any]) -> tuple[str, Any, list[str]]:
        """Check that the results will be those of the driver, and load what the pieces need."""
        os.environ["RAYON_NUM_THREADS"] = str(cpus)
        with contextlib.suppress(OSError):  # then files of relative paths are missing, which is reported
            os.chdir(folder)

        def load() -> None:
            if changed := differences(software, _software()):
                raise VocabForgeError(
                    "a worker has other software than this process",
                    got="; ".join(changed),
                    expected="the same versions everywhere",
                    remedy="install the same packages on every machine of the cluster",
                )
            import ray

            self._begun = ray.get(begin[0])()

        return _reply(load)

    def run(self, work: Callable[..., Any], given: tuple[Any, ...]) -> tuple[str, Any, list[str]]:
        """Do a piece of work."""
        return _reply(lambda: work(self._begun, *given))


def _reply(call: Callable[[], Any]) -> tuple[str, Any, list[str]]:
    host, said = socket.gethostname(), io.StringIO()
    with contextlib.redirect_stderr(said), hushed():
        try:
            value = call()
        except VocabForgeError as error:
            place = host if error.source is None else f"{error.source} on {host}"
            value = type(error)(
                error.message, got=error.got, expected=error.expected, source=place, remedy=error.remedy
            )
    return host, value, [line for line in said.getvalue().splitlines() if line]


def _software() -> dict[str, str]:
    """Return the versions that affect results, without Python's, which Ray itself compares."""
    return {name: version for name, version in package_versions().items() if name != "python"}


def _check_service(host: str, port: int) -> None:
    """Raise OSError unless a gRPC server listens there, as Ray's does: it sends its settings first."""
    with socket.create_connection((host, port), _CONNECT_S) as connection:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        if connection.recv(9, socket.MSG_WAITALL)[3:4] != b"\x04":  # type of a frame: SETTINGS
            raise ConnectionError("another service than Ray listens there")


def _connect(address: str) -> tuple[Any, bool]:
    """Return the module ray, connected, and whether this call connected it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to Ray's makers
    if address == "local":  # read on import: without it, Ray listens on this machine's other addresses too
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise UsageError("--ray needs the package ray", got=error, remedy="pip install ray") from error
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address not in ("auto", "local") and not (host and port.isdecimal()):
        raise UsageError(
            "cannot read the address of a Ray cluster",
            got=address,
            expected="auto, local, HOST:PORT or ray://HOST:PORT",
            source="--ray",
        )
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "error"}
    if address == "local":
        options |= {
            "num_cpus": core_count(),
            "include_dashboard": False,
            "object_store_memory": _STORE_BYTES,
        }
    mine = not ray.is_initialized()
    try:
        if host:  # Ray itself retries for minutes
            _check_service(host.strip("[]"), int(port))
        if mine:
            # Ray would print deaths of workers to stdout, where --json prints; they are reported here.
            ray._private.worker._worker_logs_enabled = False
            former = signal.getsignal(signal.SIGTERM)
            ray.init(**options)
            if threading.current_thread() is threading.main_thread():
                # Ray's handler aborts with a dump of the stack.
                signal.signal(signal.SIGTERM, former or signal.SIG_DFL)
    except Exception as error:  # Ray raises many kinds
        raise VocabForgeError(
            "the Ray cluster cannot be used",
            got=" ".join(f"{type(error).__name__}: {error}".split())[:600],
            expected="a running cluster with the same versions of Ray and Python as here",
            source=f"--ray {address}",
            remedy="check the address; set RAY_AUTH_MODE=token if the cluster has a token, or use --ray local",
        ) from error
    return ray, mine
