"""Child process that runs one program: executed as a script, never imported, standard library only.

It reads the job from standard input and reports on its original standard output. A report begins with a
random token, so a program that exits early or writes its own output does not pass.
"""

from __future__ import annotations

import json
import os
import resource
import sys

_MESSAGE_LIMIT = 300


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    report, null = os.dup(1), os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    for name, value in job["limits"].items():
        which = getattr(resource, name)
        hard = resource.getrlimit(which)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (limit, limit))
    # The program may replace any function, so bind those used after it.
    write, leave, token = os.write, os._exit, job.pop("token")
    try:
        _run(job.pop("program"))
        verdict = "passed:"
    except BaseException as error:  # noqa: BLE001 (SystemExit is a failure as well)
        verdict = f"failed:{_describe(error)[:_MESSAGE_LIMIT]}"
    write(report, (token + verdict).encode("utf-8", "replace"))
    leave(0)


def _run(program: str) -> None:
    """Run a program as a separate module that cannot access this file's names and is not ``__main__``."""
    module = type(sys)("candidate")
    sys.modules["candidate"] = module
    exec(compile(program, "<candidate>", "exec", dont_inherit=True), module.__dict__)


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 (the exception is the program's own)
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


if __name__ == "__main__":
    main()
