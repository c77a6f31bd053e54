"""The process that runs one program: started as a script, imported by nothing, standard library only.

It starts once a program, so modules that take time to import are avoided. It reads a job from standard input, closes
every door behind itself (``sandbox.py`` says which), runs the program and reports on a pipe. A report begins with a
random token, so that a program that ends early, by whatever exit, or that writes something itself, has not passed.
That a guard failed is said with another token, which is gone when the program begins.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_REPORT = 3
_SIGKILL = 9
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_MODE_FILTER = 2
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION = 0x20080522
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT, _PATH_BENEATH = 444, 445, 446, 1
_MESSAGE_LIMIT = 300


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def main() -> None:
    """Read the job, guard, run, report, leave without any clean-up that the program could have put in the way."""
    job = marshal.loads(sys.stdin.buffer.read())
    os.dup2(1, 0)  # standard output is the null device
    if job["report"] != _REPORT:
        os.dup2(job["report"], _REPORT)
    os.closerange(_REPORT + 1, 1 << 16)
    token, leave = job.pop("token"), os._exit
    program = job.pop("program")
    try:
        _guard(job)
    except BaseException as error:  # noqa: BLE001 (whatever it is: nothing may run now)
        _report(job["alarm"], "not guarded", f"{type(error).__name__}: {error}")
        leave(1)
    job.clear()
    report = _report
    try:
        _run(program)
    except BaseException as error:  # noqa: BLE001 (SystemExit is no pass, either)
        report(token, "failed", _describe(error))
        leave(1)
    report(token, "passed", "")
    leave(0)


def _report(token: bytes, verdict: str, message: str, write: Any = os.write) -> None:
    write(_REPORT, token + f"{verdict}:{message[:_MESSAGE_LIMIT]}".encode("utf-8", "replace"))


def _describe(error: BaseException) -> str:
    """Name and text of an error; its text may be made by the program."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 (the program's own code made it)
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _run(program: str) -> None:
    """Run a program as a module of its own, so that its names are not this file's, and it is not ``__main__``."""
    module = type(sys)("candidate")
    sys.modules["candidate"] = module
    exec(compile(program, "<candidate>", "exec", dont_inherit=True), module.__dict__)


def _guard(job: dict[str, Any]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("<II", _CAPABILITY_VERSION, 0)
    _call(libc.syscall, _CAPSET[job["machine"]], header, struct.pack("<6I", *[0] * 6))
    _call(libc.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call(libc.prctl, _PR_SET_DUMPABLE, 0, 0, 0, 0)
    _call(libc.prctl, _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != job["parent"]:  # it died before the line above
        os._exit(1)
    if job["ruleset"]:
        _restrict_files(libc, job["ruleset"], job["readable"], job["read_rights"])
    for name, value in job["limits"].items():
        which = getattr(resource, name)
        hard = resource.getrlimit(which)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (limit, limit))
    code = job["filter"]
    rules = _Filter(len(code) // 8, code)
    _call(libc.prctl, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(rules), 0, 0)


def _restrict_files(libc: ctypes.CDLL, ruleset: bytes, readable: list[str], rights: int) -> None:
    rules = _call(libc.syscall, _LANDLOCK_CREATE, ruleset, len(ruleset), 0)
    for folder in readable:
        try:
            descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            continue
        rule = struct.pack("<Qi", rights, descriptor)
        _call(libc.syscall, _LANDLOCK_ADD, rules, _PATH_BENEATH, rule, 0)
        os.close(descriptor)
    _call(libc.syscall, _LANDLOCK_RESTRICT, rules, 0)
    os.close(rules)


def _call(function: Any, *arguments: Any) -> int:
    # Whole registers: the kernel looks at all 64 bits of arguments that C would pass as int.
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = int(function(*words))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function.__name__}{arguments[:1]}: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    main()
