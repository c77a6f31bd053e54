"""Attacks on the sandbox by what they are after: secrets, folders of models, memory, disk, processes, its own end."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from vocabforge.evaluate.quality import landlock, seccomp
from vocabforge.evaluate.quality.sandbox import PASSED, TIMED_OUT, Limits, Sandbox

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in seccomp.ARCHITECTURES,
    reason="code is run on Linux only",
)
needs_landlock = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")
MEMORY_MIB = 256
# Put before an attack: whatever it gets through says so, by an error that is not one of the refusals.
TRY = """
import ctypes, os
class Through(BaseException): pass
def refused(action, *arguments, **named):
    try:
        result = action(*arguments, **named)
    except (OSError, RuntimeError, ValueError, ImportError, NotImplementedError):
        return
    raise Through(f"not refused: {action} {arguments}: {result!r}")
libc = ctypes.CDLL(None, use_errno=True)
def denied(name, *arguments):
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    function = getattr(libc, name)
    function.restype = ctypes.c_long
    result = function(*words)
    if result not in (-1, 0xffffffff):
        raise Through(f"not refused: {name}{arguments}: {result}")
"""


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(Limits(wall_s=30, memory_mib=MEMORY_MIB)) as one:
        yield one


@pytest.fixture(scope="module")
def short() -> Iterator[Sandbox]:
    with Sandbox(Limits(wall_s=30, memory_mib=MEMORY_MIB)) as one:
        one.limits = Limits(wall_s=1.5, memory_mib=MEMORY_MIB)
        yield one


def test_no_secret_of_the_environment_is_there(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "OPENAI_API_KEY": "sk-one-secret",
        "HF_TOKEN": "hf-one-secret",
        "AWS_SECRET_ACCESS_KEY": "aws-one-secret",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    attack = f"""{TRY}
names = {sorted(secrets)!r}
for name in names:
    assert name not in os.environ and name.encode() not in os.environb
libc.getenv.restype = ctypes.c_char_p
assert all(libc.getenv(name.encode()) is None for name in names)
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
at = 0
while environ[at] is not None:
    assert environ[at].partition(b"=")[0] in (b"PYTHONHASHSEED", b"LC_CTYPE"), environ[at]
    at += 1
import gc
held = [one for one in gc.get_objects() if isinstance(one, dict)]
assert not any(isinstance(value, str) and value.endswith("-one-" + "secret") for one in held for value in one.values())
"""
    assert box.run(attack) == PASSED


@needs_landlock
def test_models_and_keys_of_the_user_cannot_be_read(box: Sandbox, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("model.safetensors", "config.json", "module.py", "library.so", "weights.zip", "data.db"):
        (folder / name).write_text("secret = 1\n")
    attack = f"""{TRY}
import importlib.util, io, linecache, mmap, runpy, shutil, sys, zipfile, zipimport, ctypes.util, pathlib, glob
d = {str(folder)!r}
for name in ("model.safetensors", "config.json", "module.py"):
    path = d + "/" + name
    refused(open, path, "rb"); refused(io.open, path); refused(io.FileIO, path); refused(os.open, path, os.O_RDONLY)
    refused(os.open, "/proc/self/root" + path, os.O_RDONLY); refused(pathlib.Path(path).read_bytes)
    refused(os.open, path, os.O_RDONLY | os.O_NOATIME); refused(os.open, path, os.O_RDONLY | os.O_DIRECT)
    denied("open", path.encode(), 0); denied("openat", -100, path.encode(), 0)
    libc.fopen.restype = ctypes.c_void_p
    assert libc.fopen(path.encode(), b"r") is None
    assert linecache.getlines(path) == []
refused(os.listdir, d); refused(os.scandir, d); refused(shutil.copy, d + "/config.json", "copy")
assert glob.glob(d + "/*") == []
refused(ctypes.CDLL, d + "/library.so"); refused(zipfile.ZipFile, d + "/weights.zip"); refused(zipimport.zipimporter, d)
refused(runpy.run_path, d + "/module.py")
sys.path.insert(0, d)
refused(__import__, "module")
refused(importlib.util.spec_from_file_location("m", d + "/module.py").loader.exec_module, sys)
refused(os.open, {str(Path.home())!r}, os.O_RDONLY); refused(open, {str(Path.home() / ".netrc")!r})
for name in ("environ", "cmdline", "maps", "mem", "fd", "cwd", "root", "exe", "task"):
    refused(os.open, f"/proc/{{os.getppid()}}/{{name}}", os.O_RDONLY)
    refused(os.open, f"/proc/self/{{name}}", os.O_RDONLY)
for name in ("exe", "cwd", "root", "fd/0"):
    refused(os.readlink, f"/proc/{{os.getppid()}}/{{name}}")
"""
    assert box.run(attack) == PASSED


def test_shared_folders_and_memory_stay_as_they_are(box: Sandbox) -> None:
    places = [
        place
        for place in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", "/run")
        if os.path.isdir(place)
    ]
    attack = f"""{TRY}
import dbm.dumb, mmap, multiprocessing.shared_memory, tempfile
for place in {places!r}:
    name = place + "/vocabforge-attack"
    refused(open, name, "w"); refused(os.open, name, os.O_CREAT | os.O_RDWR); refused(os.mkdir, name)
    refused(os.open, place, os.O_TMPFILE | os.O_RDWR); refused(os.mkfifo, name); refused(os.symlink, "/", name)
    refused(os.mknod, name); refused(tempfile.mkstemp, dir=place); refused(tempfile.TemporaryFile, dir=place)
    refused(tempfile.mkdtemp, dir=place); refused(dbm.dumb.open, name, "c")
    denied("creat", name.encode(), 0o600); denied("mkdir", name.encode(), 0o700)
refused(multiprocessing.shared_memory.SharedMemory, "vocabforge-attack", True, 4096)
refused(multiprocessing.get_context("fork").Lock)
denied("shm_open", b"/vocabforge-attack", os.O_CREAT | os.O_RDWR, 0o600)
denied("shmget", 1234, 4096, 0o1600); denied("msgget", 1234, 0o1600); denied("semget", 1234, 1, 0o1600)
denied("mq_open", b"/vocabforge-attack", os.O_CREAT | os.O_RDWR, 0o600, None)
denied("memfd_create", b"x", 0)
try:
    import sqlite3
except ImportError:
    pass
else:
    try:
        sqlite3.connect("attack.db").execute("create table a (b)")
        raise Through("sqlite wrote")
    except sqlite3.Error:
        pass
"""
    assert box.run(attack) == PASSED
    assert not [place for place in places if os.path.exists(os.path.join(place, "vocabforge-attack"))]


@pytest.mark.parametrize(
    "bomb",
    [
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        "x = 'x'\nwhile True: x += x",
        "x = [0]\nwhile True: x *= 2",
        "x = 1 << (1 << 40)",
        "x = {i: [i] * 99 for i in range(1 << 40)}",
        "import mmap\nx = [mmap.mmap(-1, 1 << 24) for _ in range(1 << 20)]",
        "import mmap\nx = mmap.mmap(-1, 1 << 45)",
        "import ctypes\nx = ctypes.create_string_buffer(1 << 34)",
        "import zlib\nz = zlib.compress(bytes(1 << 24))\nx = []\nwhile True: x.append(zlib.decompress(z))",
        "raise ValueError('x' * (1 << 40))",
        "def f(a):\n  b = bytearray(1 << 22)\n  f(b)\nimport sys; sys.setrecursionlimit(10**9); f(0)",
    ],
)
def test_memory_is_limited(box: Sandbox, bomb: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    verdict = box.run(bomb)
    assert verdict.startswith(
        ("failed: MemoryError", "failed: OverflowError", "failed: OSError", "failed: the process")
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert after <= max(before, MEMORY_MIB << 10)


def test_malloc_is_limited_too(box: Sandbox) -> None:
    attack = f"""{TRY}
libc.malloc.restype = ctypes.c_void_p
assert libc.malloc(ctypes.c_size_t(1 << 34)) is None
total = 0
while (block := libc.malloc(ctypes.c_size_t(1 << 22))) is not None:
    total += 1 << 22
    assert total < {MEMORY_MIB << 20}, total
"""
    assert box.run(attack) == PASSED


def test_fork_bombs(box: Sandbox) -> None:
    attack = f"""{TRY}
import _thread, concurrent.futures, multiprocessing, multiprocessing.pool, pty, subprocess, sys, threading
def bomb():
    for _ in range(50):
        refused(os.fork); refused(os.forkpty); refused(_thread.start_new_thread, print, ())
bomb()
for way in ("fork", "spawn", "forkserver"):
    refused(multiprocessing.get_context(way).Process(target=bomb).start)
refused(threading.Thread(target=bomb).start); refused(multiprocessing.pool.ThreadPool, 2)
refused(concurrent.futures.ThreadPoolExecutor().submit, bomb)
refused(subprocess.Popen, [sys.executable, "-c", "0"]); refused(subprocess.getoutput, "true"); refused(pty.fork)
refused(os.posix_spawnp, "true", ["true"], {{}}); refused(os.execve, sys.executable, ["x"], {{}})
denied("fork")
thread = ctypes.c_ulong()
start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: 0)
assert libc.pthread_create(ctypes.byref(thread), None, start, None) != 0
assert libc.system(b"exit 0") != 0
libc.popen.restype = ctypes.c_void_p
assert libc.popen(b"true", b"r") is None
if hasattr(os, "unshare"):
    refused(os.unshare, os.CLONE_NEWUSER)
denied("unshare", 0x10000000); denied("setns", 0, 0)
"""
    assert box.run(attack) == PASSED


def test_the_parent_is_out_of_reach(box: Sandbox) -> None:
    attack = f"""{TRY}
import signal
parent = os.getppid()
for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGINT, signal.SIGUSR1, signal.SIGCONT, 0):
    refused(os.kill, parent, number); denied("kill", parent, number)
denied("ptrace", 16, parent, 0, 0); denied("ptrace", 0, 0, 0, 0)
page = ctypes.create_string_buffer(64)
denied("process_vm_readv", parent, page, 1, page, 1, 0); denied("process_vm_writev", parent, page, 1, page, 1, 0)
if hasattr(os, "pidfd_open"):
    refused(os.pidfd_open, parent)
denied("setpriority", 0, parent, 19); denied("sched_setaffinity", parent, 8, page)
denied("prlimit", parent, 0, page, None)
refused(os.setpgid, 0, parent); refused(os.setsid); refused(os.tcsetpgrp, 0, parent)
refused(os.open, "/dev/tty", os.O_RDONLY)
"""
    assert box.run(attack) == PASSED
    assert box.run("import os\nos.abort()").startswith("failed: the process was ended by SIG")
    assert box.run("import signal\nsignal.raise_signal(9)").startswith("failed: PermissionError")


@pytest.mark.parametrize(
    "program",
    [
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\nwhile True: pass",
        "import signal, time\nfor n in set(signal.Signals) - {9, 19}: signal.signal(n, signal.SIG_IGN)\ntime.sleep(99)",
        "import select\nselect.poll().poll()",
        "import threading\nthreading.Event().wait()",
        "import re\nre.match(r'(a+)+$', 'a' * 64 + 'b')",
        "class E(Exception):\n  def __str__(self):\n    while True: pass\nraise E",
        "class D:\n  def __del__(self):\n    while True: pass\nd = D(); d = 0",
        "import atexit\nwhile True:\n  try:\n    while True: pass\n  except BaseException: pass",
        "x = 10 ** (10 ** 8)",
    ],
)
def test_what_does_not_end_is_ended(short: Sandbox, program: str) -> None:
    assert short.run(program) == TIMED_OUT


@pytest.mark.parametrize(
    "program",
    [
        "raise ValueError('x' * (1 << 24))",
        "raise type('x' * (1 << 24), (Exception,), {})",
        "raise type('\\x1b[2J\\x9b\\r\\n', (Exception,), {})('\\x1b]0;x\\x07')",
        "class E(Exception):\n  def __str__(self): return self\nraise E",
        "e = None\nfor _ in range(10000):\n  n = ValueError('x'); n.__cause__ = e; e = n\nraise e",
        "import os\nos.write(2, b'x' * (1 << 20)); os.write(1, b'x' * (1 << 20)); raise ValueError('\\ud800')",
    ],
)
def test_reports_are_short_and_printable(box: Sandbox, program: str) -> None:
    verdict = box.run(program)
    assert verdict.startswith("failed: ")
    assert verdict.isprintable()
    assert len(verdict) < 400


LEFT_BEHIND = """
import os
from vocabforge.evaluate.quality.sandbox import Limits, Sandbox
with Sandbox(Limits(wall_s=30)) as box:
    print(box.run("import os; os.abort()"), flush=True)
    assert os.listdir(box._folder.name) == []  # no core dump
    try:
        print("left:", os.waitpid(-1, os.WNOHANG))
    except ChildProcessError:
        print("no child, not even a dead one")
"""


def test_nothing_is_left_behind() -> None:
    """In a process of its own: other tests have children, too."""
    done = subprocess.run([sys.executable, "-c", LEFT_BEHIND], capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["no child, not even a dead one"], done.stderr
