"""Attacks on the sandbox: each program tries something, and says what was not refused."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vocabforge.evaluate.quality import landlock, sandbox, seccomp
from vocabforge.evaluate.quality.sandbox import PASSED, TIMED_OUT, Limits, Sandbox

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in seccomp.ARCHITECTURES,
    reason="code is run on Linux only",
)
LANDLOCK = landlock.abi()
# Put before an attack: it passes only where everything that it tries is refused with an error.
TRY = """
import ctypes, os
def refused(action, *arguments, **named):
    try:
        action(*arguments, **named)
    except (OSError, RuntimeError, ValueError):
        return
    raise SystemError(f"not refused: {action} {arguments}")
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
"""


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(Limits(wall_s=20, memory_mib=256)) as one:
        yield one


@pytest.fixture(scope="module")
def short() -> Iterator[Sandbox]:
    with Sandbox(Limits(wall_s=20, memory_mib=256)) as one:
        one.limits = Limits(wall_s=1, memory_mib=256)
        yield one


def test_a_program_that_ends_has_passed(box: Sandbox) -> None:
    ordinary = (
        "import collections, dataclasses, decimal, hashlib, heapq, itertools, json, math, random, re, string, typing\n"
        "@dataclasses.dataclass\nclass A:\n    x: 'typing.List[int]'\n"
        "assert hashlib.md5(b'x').hexdigest()[:4] == '9dd4' and A([1]).x == [1]\n"
        "assert __name__ != '__main__' and random.random() < 1\n"
        "import time, os, sys; time.sleep(0.01); print('fine', os.getcwd(), file=sys.stderr)\n"
        "assert not [name for name in os.environ if name not in ('PYTHONHASHSEED', 'LC_CTYPE')], os.environ\n"
        "assert 'site' not in sys.modules and not any('site-packages' in one for one in sys.path)\n"
    )
    assert box.run(ordinary) == PASSED


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("assert 1 == 2, 'one'", "failed: AssertionError: one"),
        ("def f(:", "failed: SyntaxError"),
        ("x = '\0'", "failed: "),
        ("x = '\ud800'", "failed: UnicodeEncodeError"),
        ("raise SystemExit(0)", "failed: SystemExit: 0"),
        ("import os; os._exit(0)", "failed: it left before its tests were over (exit code 0)"),
        ("import os; print('passed'); os.write(3, b'passed:'); os._exit(0)", "failed: it wrote to the pipe"),
        ("import os; os.write(3, b'passed:')", "failed: it wrote to the pipe"),
        ("import os; os.write(3, b'x' * 16 + b'passed:'); os._exit(0)", "failed: it wrote to the pipe"),
        ("import os; os.close(3)", "failed: it left before"),
        ("import os\nwhile True: os.write(3, b'x' * 4096)", "failed: it wrote to the pipe"),
        ("import ctypes; ctypes.string_at(0)", "failed: the process was ended by SIGSEGV"),
        ("raise KeyboardInterrupt", "failed: KeyboardInterrupt"),
        ("class E(Exception):\n  def __str__(self): raise E\nraise E", "failed: E"),
        ("raise ValueError('\\x1b[31m\\n' + 9999 * 'x')", "failed: ValueError:  [31m xxxx"),
        ("input()", "failed: EOFError"),
        ("x = bytearray(1 << 30)", "failed: MemoryError"),
        ("def f(): f()\nf()", "failed: RecursionError"),
        (
            "import threading; threading.Thread(target=print).start()",
            "failed: RuntimeError: can't start new thread",
        ),
        ("import atexit, os; atexit.register(os._exit, 0); 1 / 0", "failed: ZeroDivisionError"),
    ],
)
def test_failures_and_early_ends(box: Sandbox, program: str, says: str) -> None:
    result = box.run(program)
    assert result.startswith(says)
    assert len(result) < 400
    assert result.isprintable()


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time, signal\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(100)",
        "import os, time; os.close(3); time.sleep(100)",
    ],
)
def test_time_is_limited(short: Sandbox, program: str) -> None:
    assert short.run(program) == TIMED_OUT  # none of them ends by itself


def test_files_stay_as_they_are(box: Sandbox, tmp_path: Path) -> None:
    victim, secret = tmp_path / "victim", tmp_path / "folder"
    victim.write_text("whole")
    victim.chmod(0o644)
    secret.mkdir()
    before = victim.stat()
    attack = f"""{TRY}
import shutil
v, d = {str(victim)!r}, {str(secret)!r}
for mode in ("w", "a", "r+", "x"):
    refused(open, v, mode)
    refused(open, "here" + mode, mode)
for flags in (os.O_TRUNC, os.O_CREAT, os.O_TMPFILE | os.O_RDWR, os.O_PATH):
    refused(os.open, v if flags != os.O_TMPFILE | os.O_RDWR else d, flags)
refused(os.remove, v); refused(os.rename, v, v + "2"); refused(os.replace, v, v + "2"); refused(os.truncate, v, 0)
refused(os.chmod, v, 0); refused(os.chown, v, 1, 1); refused(os.utime, v, (0, 0)); refused(os.link, v, v + "3")
refused(os.symlink, v, v + "4"); refused(os.mkdir, v + "5"); refused(os.rmdir, d); refused(os.mkfifo, v + "6")
refused(os.mknod, v + "7"); refused(os.setxattr, v, "user.x", b"x"); refused(os.chdir, "/"); refused(os.chroot, d)
refused(shutil.rmtree, d)
"""
    assert box.run(attack) == PASSED
    assert victim.read_text() == "whole"
    after = victim.stat()
    assert (after.st_mode, after.st_uid, after.st_mtime_ns, after.st_nlink) == (
        before.st_mode, before.st_uid, before.st_mtime_ns, 1,
    )  # fmt: skip
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder", "victim"]


@pytest.mark.skipif(not LANDLOCK, reason="this kernel has no Landlock")
def test_files_outside_of_the_library_cannot_be_read(box: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    attack = f"""{TRY}
for name in ({str(secret)!r}, "/etc/passwd", "/proc/self/mem", "/proc/self/environ", f"/proc/{{os.getppid()}}/environ",
             {str(Path(sandbox.__file__))!r}, "/dev/urandom", "/dev/tty"):
    refused(open, name, "rb")
for folder in ({str(tmp_path)!r}, "/", ".", "/proc", "/root", "/home"):
    refused(os.listdir, folder)
import string
assert "ascii" in open(string.__file__).read()
"""
    assert box.run(attack) == PASSED


def test_network_is_refused(box: Sandbox, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / "socket"))
        local.listen()
        server.settimeout(0)
        local.settimeout(0)
        attack = f"""{TRY}
import socket
refused(socket.create_connection, ("127.0.0.1", {server.getsockname()[1]}))
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
        refused(socket.socket, family, kind)
refused(socket.socketpair)
refused(socket.getaddrinfo, "example.org", 80)
refused(socket.create_server, ("", 0))
"""
        assert box.run(attack) == PASSED
        for one in (server, local):
            with pytest.raises(BlockingIOError):
                one.accept()


def test_no_new_process_and_no_signal(box: Sandbox) -> None:
    attack = f"""{TRY}
import multiprocessing, subprocess, sys
refused(os.fork); refused(os.forkpty); refused(subprocess.run, ["/bin/true"]); refused(os.execv, "/bin/true", ["true"])
refused(os.posix_spawn, "/bin/true", ["true"], {{}}); refused(multiprocessing.Process(target=print).start)
refused(os.popen, "true")
for number in (0, 1, 9, 15):
    for process in (os.getppid(), -1, 0, 1):
        if not (number and process <= 0):  # were it not refused, it would end the tests
            refused(os.kill, process, number)
refused(os.killpg, os.getpgrp(), 0)
refused(os.setsid); refused(os.setpgid, 0, 0); refused(os.nice, -5); refused(os.setuid, 12345)
refused(os.sched_setaffinity, 0, {{0}})
"""
    assert box.run(attack) == PASSED


def test_limits_hold_and_cannot_be_changed(box: Sandbox) -> None:
    limits = box.limits.resources()
    none = ("CORE", "FSIZE", "MEMLOCK", "MSGQUEUE", "NPROC")
    assert {name: limits[f"RLIMIT_{name}"] for name in none} == dict.fromkeys(none, 0)
    assert (limits["RLIMIT_AS"], limits["RLIMIT_CPU"], limits["RLIMIT_NOFILE"]) == (256 << 20, 21, 32)
    attack = f"""{TRY}
import resource
for name, value in {limits!r}.items():
    assert resource.getrlimit(getattr(resource, name)) == (value, value), name
    refused(resource.setrlimit, getattr(resource, name), (value, value))
refused(resource.prlimit, os.getppid(), resource.RLIMIT_CPU, (1, 1))
refused(resource.prlimit, os.getppid(), resource.RLIMIT_CPU)
def many():
    files = []
    while True:
        files.append(open(os.__file__))
refused(many)
"""
    assert box.run(attack) == PASSED


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="numbers of x86_64; the filter's own test has both"
)
def test_calls_that_python_has_no_name_for(box: Sandbox) -> None:
    # Harmless arguments: a filter that let them through would cost nothing.
    attack = f"""{TRY}
import fcntl, mmap
page = ctypes.create_string_buffer(4096)
for number in (425, 319, 310, 311, 101, 435, 437, 434, 424, 321, 323, 250, 272, 303, 304, 298, 317, 157, 135, 444, 446,
               29, 68, 64, 240, 206, 254, 222, 38, 447, 56, 57, 58, 59, 322, 41, 62, 200, 234, 302):
    refused(call, number, -1, page, 0, 0, 0, 0)
refused(call, 157, 1, 0, 0, 0, 0)       # prctl: outlive the parent
refused(call, 101, 16, os.getppid(), 0, 0)  # ptrace: attach
refused(call, 234, os.getppid(), os.getppid(), 0)  # tgkill
refused(call, 126, page, page)          # capset
refused(call, 435, page, 64)            # clone3
refused(call, 437, -100, b"/etc/passwd", page, 24)  # openat2
refused(fcntl.fcntl, 3, fcntl.F_SETOWN, os.getppid())
refused(fcntl.fcntl, 3, 1031, 1 << 20)  # F_SETPIPE_SZ
with open(os.__file__) as file:
    refused(fcntl.ioctl, file, 0x40086602, page)  # FS_IOC_SETFLAGS
    refused(fcntl.fcntl, file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    refused(mmap.mmap, file.fileno(), 4096, mmap.MAP_SHARED, mmap.PROT_WRITE)
refused(call, 28, page, 4096, 100)      # madvise: poison
"""
    assert box.run(attack) == PASSED


@pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code of x86_64")
@pytest.mark.parametrize(
    ("code", "name"),
    [(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3", "32-bit"), (b"\xb8\x27\x00\x00\x40\x0f\x05\xc3", "x32")],
)
def test_calls_by_other_numbers_end_the_process(box: Sandbox, code: bytes, name: str) -> None:
    attack = f"""
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write({code!r})
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
"""
    assert box.run(attack) in (
        "failed: the process was ended by SIGSYS",
        "failed: the process was ended by SIGSEGV",
    ), name


def test_no_descriptor_is_inherited(box: Sandbox, tmp_path: Path) -> None:
    with open(tmp_path / "open", "w") as file, socket.socket() as connection:
        for one in (file, connection):
            os.set_inheritable(one.fileno(), True)
        attack = f"""{TRY}
import stat
kinds = {{}}
for number in range(64):
    try:
        kinds[number] = stat.S_IFMT(os.fstat(number).st_mode)
    except OSError:
        pass
assert kinds == {{0: stat.S_IFCHR, 1: stat.S_IFCHR, 2: stat.S_IFCHR, 3: stat.S_IFIFO}}, kinds
assert os.read(0, 1) == b""
refused(os.read, 3, 1)
"""
        assert box.run(attack) == PASSED


def test_a_program_cannot_end_the_whole_scoring(box: Sandbox) -> None:
    # It may find the token of its verdict, which is its own loss; not the one that stops the evaluation.
    attack = """
import gc, os, sys
frame, tokens = sys._getframe(), set()
while frame:
    held = [one for each in frame.f_locals.values() for one in (each.values() if isinstance(each, dict) else [each])]
    tokens |= {one for one in held if isinstance(one, bytes) and len(one) == 16}
    frame = frame.f_back
tokens |= {one for each in gc.get_objects() if isinstance(each, dict) for one in each.values()
           if isinstance(one, bytes) and len(one) == 16}
assert tokens
os.write(3, min(tokens) + b"not guarded:\\x1b[2J")
os._exit(1)
"""
    assert box.run(attack).startswith("failed: it wrote to the pipe")


def test_output_goes_nowhere_and_many_run_at_once(box: Sandbox, capfd: pytest.CaptureFixture[str]) -> None:
    flood = "import sys\nfor _ in range(2000): print('x' * 10000); print('y' * 10000, file=sys.stderr)"
    programs = [flood, "assert False", "pass", "import os; os._exit(3)"]
    results = box.run_all(programs, "programs")
    assert results == [
        PASSED,
        "failed: AssertionError",
        PASSED,
        "failed: it left before its tests were over (exit code 3)",
    ]
    assert len("".join(capfd.readouterr())) < 1000
    assert box.run_all([], "programs") == []
