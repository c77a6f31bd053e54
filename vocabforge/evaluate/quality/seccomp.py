"""A filter of system calls for running code that nobody has read: a list of what is allowed.

Everything that is not listed is refused, so a call that a later kernel brings (``io_uring`` was such a one) is
refused, too: a list of forbidden calls would have to know it. Allowed is what an interpreter needs that computes and
imports its own library: memory, time, opening to read, reading, and writing to what it was given. Calls whose harm
lies in an argument are allowed for the harmless values alone.

The filter is a classic BPF program (Linux ``Documentation/userspace-api/seccomp_filter.rst``). It cannot follow
pointers, hence the calls that pass their flags by one (``openat2``, ``clone3``) answer "not implemented", and C
libraries fall back to the older ones.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_DENY = _ERRNO | errno.EPERM
_ABSENT = _ERRNO | errno.ENOSYS
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_X32_BIT = 0x40000000
# The first number that all architectures share: younger calls, for which every C library has a fallback.
_YOUNG = 424

# Opening for anything but reading; O_PATH, too, since Landlock does not look at it.
_WRITE_FLAGS = 0x3 | 0o100 | 0o1000 | 0o2000 | 0o10000000
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC. Not F_SETOWN: it makes the kernel signal others.
_FCNTL = (0, 1, 2, 3, 4, 1030)
_IOCTL = (0x5401, 0x541B, 0x5450, 0x5451)  # TCGETS (isatty), FIONREAD, FIONCLEX, FIOCLEX
_POISON = 100  # MADV_HWPOISON and MADV_SOFT_OFFLINE take pages of memory away from the machine

# fmt: off
_X86_64 = {
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9,
    "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15,
    "pread64": 17, "readv": 19, "writev": 20, "access": 21, "select": 23, "sched_yield": 24, "mremap": 25, "dup": 32,
    "dup2": 33, "nanosleep": 35, "getpid": 39, "exit": 60, "uname": 63, "getcwd": 79, "readlink": 89,
    "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104,
    "geteuid": 107, "getegid": 108, "getppid": 110, "getpgrp": 111, "sigaltstack": 131, "gettid": 186, "time": 201,
    "futex": 202, "sched_getaffinity": 204, "getdents64": 217, "restart_syscall": 219, "clock_gettime": 228,
    "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "newfstatat": 262, "readlinkat": 267,
    "faccessat": 269, "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "dup3": 292, "getrandom": 318,
    "statx": 332, "rseq": 334, "faccessat2": 439,
}
_AARCH64 = {
    "getcwd": 17, "dup": 23, "dup3": 24, "faccessat": 48, "close": 57, "getdents64": 61, "lseek": 62, "read": 63,
    "write": 64, "readv": 65, "writev": 66, "pread64": 67, "pselect6": 72, "ppoll": 73, "readlinkat": 78,
    "newfstatat": 79, "fstat": 80, "exit": 93, "exit_group": 94, "futex": 98, "set_robust_list": 99, "nanosleep": 101,
    "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115, "sched_getaffinity": 123, "sched_yield": 124,
    "restart_syscall": 128, "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139,
    "times": 153, "uname": 160, "getrlimit": 163, "getrusage": 165, "gettimeofday": 169, "getpid": 172,
    "getppid": 173, "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178, "sysinfo": 179,
    "brk": 214, "munmap": 215, "mremap": 216, "mmap": 222, "mprotect": 226, "getrandom": 278, "statx": 291,
    "rseq": 293, "faccessat2": 439,
}
# fmt: on


@dataclass(frozen=True)
class Architecture:
    """What the filter must know of a processor family.

    Attributes:
        audit: its number in ``linux/audit.h``.
        allowed: call -> number.
        open_flags: number of an opening call -> index of its flags argument.
        ioctl, fcntl, madvise, prlimit64: numbers of calls allowed for some arguments.
    """

    audit: int
    allowed: dict[str, int]
    open_flags: dict[int, int]
    ioctl: int
    fcntl: int
    madvise: int
    prlimit64: int


ARCHITECTURES = {
    "x86_64": Architecture(
        0xC000003E, _X86_64, {2: 1, 257: 2}, ioctl=16, fcntl=72, madvise=28, prlimit64=302
    ),
    "aarch64": Architecture(0xC00000B7, _AARCH64, {56: 2}, ioctl=29, fcntl=25, madvise=233, prlimit64=261),
}

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def filter_program(machine: str) -> bytes:
    """The filter for a machine, as an array of ``struct sock_filter`` (8 bytes an instruction).

    Args:
        machine: a key of ``ARCHITECTURES``.

    Raises:
        KeyError: no table for this machine.
    """
    one = ARCHITECTURES[machine]
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, one.audit),
        _give(_KILL),  # 32-bit calls have other numbers
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32_BIT),
        _give(_KILL),
    ]
    for number in sorted(one.allowed.values()):
        code += _on(number, [_give(_ALLOW)])
    for number, argument in sorted(one.open_flags.items()):
        flags = [_low(argument), (_ANY_BIT, 0, 1, _WRITE_FLAGS), _give(_DENY), _give(_ALLOW)]
        code += _on(number, flags)
    code += _on(one.ioctl, _one_of(1, _IOCTL))
    code += _on(one.fcntl, _one_of(1, _FCNTL))
    code += _on(one.madvise, [_low(2), (_AT_LEAST, 0, 1, _POISON), _give(_DENY), _give(_ALLOW)])
    code += _on(one.prlimit64, _own_limits_read())
    code += [(_AT_LEAST, 0, 1, _YOUNG), _give(_ABSENT), _give(_DENY)]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _give(verdict: int) -> Instruction:
    return (_RETURN, 0, 0, verdict)


def _low(argument: int) -> Instruction:
    """Load the lower half of an argument; the kernel reads these arguments as 32-bit numbers, too."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * argument)


def _on(number: int, block: Sequence[Instruction]) -> list[Instruction]:
    """``block``, which always returns, for one call; the call's number stays loaded for the others."""
    return [(_EQUAL, 0, len(block), number), *block]


def _one_of(argument: int, values: Sequence[int]) -> list[Instruction]:
    block = [_low(argument)]
    for value in values:
        block += [(_EQUAL, 0, 1, value), _give(_ALLOW)]
    return [*block, _give(_DENY)]


def _own_limits_read() -> list[Instruction]:
    """``prlimit64(0, resource, NULL, old)``: reading one's own limits, which C libraries do."""
    block: list[Instruction] = []
    for offset in (_ARGUMENTS, _ARGUMENTS + 16, _ARGUMENTS + 20):
        block += [(_LOAD, 0, 0, offset), (_EQUAL, 1, 0, 0), _give(_DENY)]
    return [*block, _give(_ALLOW)]
