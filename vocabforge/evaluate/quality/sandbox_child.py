"""The process that runs one program: started as a script, imported by nothing, standard library only.

It reads the job from standard input and reports on what was its standard output. A report begins with a random token,
so a program that ends early, or writes something itself, has not passed.
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
    # The program may replace any function; what runs after it is bound before.
    write, leave, token = os.write, os._exit, job.pop("token")
    try:
        _run(job.pop("program"))
        verdict = "passed:"
    except BaseException as error:  # noqa: BLE001 (SystemExit is no pass, either)
        verdict = f"failed:{_describe(error)[:_MESSAGE_LIMIT]}"
    write(report, (token + verdict).encode("utf-8", "replace"))
    leave(0)


def _run(program: str) -> None:
    """Run a program as its own module, so that it neither sees this file's names nor is ``__main__``."""
    module = type(sys)("candidate")
    sys.modules["candidate"] = module
    exec(compile(program, "<candidate>", "exec", dont_inherit=True), module.__dict__)


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 (the program's own code made it)
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


if __name__ == "__main__":
    main()
