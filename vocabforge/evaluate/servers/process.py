"""Start a server for an evaluation, and stop it."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...core.console import say
from ...core.errors import UsageError, VocabForgeError
from ...core.files import disk_errors
from ...core.provenance import hide_secrets, secrets_of
from ...corpus.regenerate.server import Refused, Server, TryAgain, Unusable, base_url

_SHOWN_LINES = 15
_SAY_EVERY_S = 15.0
_STOP_S = 20.0


def split_command(text: str, source: str = "--start") -> list[str]:
    """Split a command into words like a shell, without running a shell.

    Raises:
        UsageError: the command cannot be split, or has no ``{port}``.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError("the command cannot be read", got=error, source=source) from error
    if not any("{port}" in word for word in words):
        raise UsageError(
            "the server's command has no place for its port",
            got=hide_secrets(text),
            expected="{port}, where the command takes its port: --port {port}",
            source=source,
        )
    return words


@contextlib.contextmanager
def started(
    name: str, command: str, log: Path, *, key: str | None, health_s: float, source: str = "--start"
) -> Iterator[str]:
    """Start a server, wait until it is healthy, yield its address, and finally stop its process group.

    Args:
        log: receives the server's output, with keys replaced.
        health_s: maximum number of seconds to start.
        source: option that has the command, for messages.

    Raises:
        VocabForgeError: the server cannot be started, exits, or does not become healthy.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [word.replace("{port}", str(port)) for word in split_command(command, source)]
    hidden = [*secrets_of(command), *([key] if key else [])]
    with disk_errors(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        file = open(log, "a", encoding="utf-8")  # noqa: SIM115 (closed by the thread below)
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        file.close()
        raise UsageError(
            f"the server of {name} cannot be started",
            got=f"{error.strerror}: {words[0]}",
            source=source,
            remedy="no shell runs the command: give a program and its arguments",
        ) from error
    last: deque[str] = deque(maxlen=_SHOWN_LINES)
    reader = threading.Thread(target=_keep_log, args=(process.stdout, file, last, hidden), daemon=True)
    reader.start()
    say(f"Starting {name} on port {port}; its log is {log}")
    former = signal.signal(signal.SIGTERM, _end)  # a killed command must not leave its server running
    try:
        url = base_url(f"http://127.0.0.1:{port}")
        _wait_until_healthy(name, process, url, key, health_s, last, log)
        try:
            yield url
        except VocabForgeError as error:
            if (code := _exit_code(process)) is None:
                raise
            raise type(error)(
                error.message,
                got=f"it ended with exit code {code}; its last lines:\n    " + "\n    ".join(last),
                source=log,
                remedy=error.remedy,
            ) from error
    finally:
        _stop(process)
        reader.join(timeout=5.0)
        signal.signal(signal.SIGTERM, former)


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _keep_log(stream: Any, file: Any, last: deque[str], hidden: Sequence[str]) -> None:
    with file, contextlib.suppress(ValueError):
        for line in stream:
            for secret in hidden:
                line = line.replace(secret, "***")
            last.append(line.rstrip())
            with contextlib.suppress(OSError):  # a full disk must not stop the server
                file.write(line)
                file.flush()


def _wait_until_healthy(
    name: str,
    process: subprocess.Popen[str],
    url: str,
    key: str | None,
    health_s: float,
    last: deque[str],
    log: Path,
) -> None:
    begin = said = time.monotonic()
    server = Server(url, key=key, timeout=5.0)
    try:
        while True:
            if (code := _exit_code(process, 0.0)) is not None:
                raise VocabForgeError(
                    f"the server of {name} ended before it was ready (exit code {code})",
                    got="\n    ".join(["its last lines", *last]),
                    source=log,
                    remedy="run the server's command by hand, and fix it",
                )
            with contextlib.suppress(TryAgain, Refused, Unusable):
                server.exchange("GET", f"{url.removesuffix('/v1')}/health", None)
                say(f"{name} is ready after {time.monotonic() - begin:.0f} s")
                return
            now = time.monotonic()
            if now - begin > health_s:
                raise VocabForgeError(
                    f"the server of {name} was not ready in time",
                    got="\n    ".join([f"no health after {health_s:g} s; its last lines", *last]),
                    source=log,
                    remedy="--start-timeout S waits longer",
                )
            if now - said > _SAY_EVERY_S:
                said = now
                say(f"Waiting for {name}: {now - begin:.0f} s; {last[-1][:120] if last else 'no output'}")
            time.sleep(0.25)
    finally:
        server.close()


def _exit_code(process: subprocess.Popen[str], wait: float = 2.0) -> int | None:
    try:
        return process.wait(wait)
    except subprocess.TimeoutExpired:
        return None


def _stop(process: subprocess.Popen[str]) -> None:
    """End the process group gracefully, then by force, including processes that the server left behind."""
    for number, wait in ((signal.SIGTERM, _STOP_S), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait)
