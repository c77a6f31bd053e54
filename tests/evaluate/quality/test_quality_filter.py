"""The system call filter, run by a small BPF machine for every architecture; Landlock's ruleset; the interval."""

from __future__ import annotations

import errno
import functools
import math
import statistics
import struct

import pytest

from vocabforge.evaluate.quality import landlock, seccomp
from vocabforge.evaluate.quality.rate import rate, wilson

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
MACHINES = sorted(seccomp.ARCHITECTURES)
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Numbers as the kernel's tables have them: (x86_64, aarch64); None: the architecture has no such call.
FORBIDDEN = {
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "sendto": (44, 206), "sendmsg": (46, 211),
    "socketpair": (53, 199), "clone": (56, 220), "fork": (57, None), "vfork": (58, None), "execve": (59, 221),
    "execveat": (322, 281), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "memfd_create": (319, 279),
    "creat": (85, None), "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38),
    "renameat2": (316, 276), "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "mknod": (133, None),
    "mknodat": (259, 33), "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55),
    "fchownat": (260, 54), "truncate": (76, 45), "ftruncate": (77, 46), "utimensat": (280, 88), "setxattr": (188, 5),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "chdir": (80, 49),
    "setrlimit": (160, 164), "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280), "perf": (298, 241),
    "keyctl": (250, 219), "add_key": (248, 217), "userfaultfd": (323, 282), "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264), "prctl": (157, 167), "seccomp": (317, 277), "personality": (135, 92),
    "setuid": (105, 146), "setgid": (106, 144), "capset": (126, 91), "setsid": (112, 157), "setpgid": (109, 154),
    "init_module": (175, 105), "finit_module": (313, 273), "kexec_load": (246, 104), "reboot": (169, 142),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "sethostname": (170, 161), "syslog": (103, 116),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "io_setup": (206, 0),
    "splice": (275, 76), "sendfile": (40, 71), "pwrite64": (18, 68), "fallocate": (285, 47), "sync": (162, 81),
    "inotify_add_watch": (254, 27), "fanotify_init": (300, 262), "quotactl": (179, 60), "swapon": (167, 224),
    "timer_create": (222, 107), "setitimer": (38, 103), "sched_setscheduler": (144, 119), "setpriority": (141, 140),
    "sched_setaffinity": (203, 122), "mlockall": (151, 230), "migrate_pages": (256, 238), "kcmp": (312, 272),
    "iopl": (172, None), "modify_ldt": (154, None), "arch_prctl": (158, None), "vhangup": (153, 58), "acct": (163, 89),
}  # fmt: skip
YOUNG = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "pidfd_open": 434, "clone3": 435, "openat2": 437, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442, "landlock_restrict_self": 446, "memfd_secret": 447, "fchmodat2": 452, "one to come": 600,
}  # fmt: skip


program_of = functools.cache(seccomp.filter_program)


def judge(machine: str, number: int, arguments: tuple[int, ...] = (), audit: int | None = None) -> int:
    """Run the filter on one call, as the kernel would."""
    program = program_of(machine)
    words = [argument % (1 << 64) for argument in (*arguments, *[0] * (6 - len(arguments)))]
    data = struct.pack("<IIQ6Q", number, AUDIT[machine] if audit is None else audit, 0, *words)
    accumulator, at = 0, 0
    while True:
        code, true, false, constant = struct.unpack_from("<HBBI", program, at)
        if code == 0x06:
            return constant
        at += 8
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, constant)[0]
            continue
        test = {
            0x15: accumulator == constant,
            0x35: accumulator >= constant,
            0x45: bool(accumulator & constant),
        }
        at += 8 * (true if test[code] else false)


@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_is_allowed_but_the_list(machine: str) -> None:
    one = seccomp.ARCHITECTURES[machine]
    conditional = {one.ioctl, one.fcntl, one.madvise, one.prlimit64, *one.open_flags}
    assert not conditional & set(one.allowed.values())
    allowed = {number for number in range(700) if judge(machine, number, (9, 9, 9, 9)) == ALLOW}
    assert allowed - conditional == set(one.allowed.values())
    for name, numbers in FORBIDDEN.items():
        number = numbers[MACHINES[::-1].index(machine)]
        assert number is None or judge(machine, number) == EPERM, name
    for name, number in YOUNG.items():
        assert judge(machine, number) == ENOSYS, name


@pytest.mark.parametrize("machine", MACHINES)
def test_foreign_calls_kill(machine: str) -> None:
    for other in (*(set(AUDIT.values()) - {AUDIT[machine]}), 0x40000003, 0x40000028, 0):
        assert judge(machine, one_read(machine), audit=other) == KILL
    assert judge(machine, 0x40000000) == KILL  # x32's read
    assert judge(machine, 0x40000000 | 520) == KILL
    assert judge(machine, 0xFFFFFFFF) == KILL


def one_read(machine: str) -> int:
    return seccomp.ARCHITECTURES[machine].allowed["read"]


@pytest.mark.parametrize("machine", MACHINES)
def test_files_open_for_reading_only(machine: str) -> None:
    for number, argument in seccomp.ARCHITECTURES[machine].open_flags.items():
        for flags, verdict in {
            0: ALLOW,
            0o2000000 | 0o200000: ALLOW,  # O_CLOEXEC, O_DIRECTORY
            1: EPERM,
            2: EPERM,
            3: EPERM,
            0o100: EPERM,  # O_CREAT
            0o1000: EPERM,  # O_TRUNC alone empties a file
            0o2000: EPERM,  # O_APPEND
            0o10000000: EPERM,  # O_PATH
            0o20200002: EPERM,  # O_TMPFILE | O_RDWR
        }.items():
            arguments = [0] * argument + [flags | 0xABCD << 32]  # the kernel ignores the upper half
            assert judge(machine, number, tuple(arguments)) == verdict, oct(flags)


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_that_reach_others_are_refused(machine: str) -> None:
    one = seccomp.ARCHITECTURES[machine]
    assert judge(machine, one.fcntl, (3, 1)) == ALLOW
    for command in (
        8,
        10,
        15,
        1024,
        1026,
        1031,
        1033,
    ):  # F_SETOWN, F_SETSIG, F_SETOWN_EX, leases, notify, pipes, seals
        assert judge(machine, one.fcntl, (3, command)) == EPERM
    assert judge(machine, one.ioctl, (1, 0x5401)) == ALLOW
    for command in (
        0x5412,
        0x8901,
        0x8902,
        0x40086602,
        0x40049409,
    ):  # TIOCSTI, owners, FS_IOC_SETFLAGS, FICLONE
        assert judge(machine, one.ioctl, (1, command)) == EPERM
    assert judge(machine, one.madvise, (0, 4096, 4)) == ALLOW
    assert [judge(machine, one.madvise, (0, 4096, advice)) for advice in (100, 101, -1)] == [EPERM] * 3
    assert judge(machine, one.prlimit64, (0, 7, 0, 1 << 47)) == ALLOW
    for arguments in ((0, 7, 1 << 47, 0), (0, 7, 8, 0), (1, 7, 0, 8), (0, 7, 1 << 32, 8)):
        assert judge(machine, one.prlimit64, arguments) == EPERM


def test_the_program_is_one_that_the_kernel_takes() -> None:
    for machine in MACHINES:
        program = seccomp.filter_program(machine)
        assert len(program) % 8 == 0
        assert len(program) // 8 <= 4096
        assert struct.unpack_from("<H", program, len(program) - 8)[0] == 0x06
    with pytest.raises(KeyError):
        seccomp.filter_program("riscv64")


@pytest.mark.parametrize(
    ("version", "files", "size"),
    [(1, 13, 8), (2, 14, 8), (3, 15, 8), (4, 15, 16), (5, 16, 16), (6, 16, 24), (9, 16, 24)],
)
def test_landlock_refuses_all_that_a_version_knows(version: int, files: int, size: int) -> None:
    packed = landlock.ruleset(version)
    assert len(packed) == size
    assert struct.unpack_from("<Q", packed)[0] == (1 << files) - 1
    assert set(struct.unpack(f"<{size // 8}Q", packed)[1:]) <= {3}


def test_wilsons_interval() -> None:
    # Brown, Cai, DasGupta (Statistical Science 16, 2001): 5 of 10.
    assert wilson(0.5, 10) == pytest.approx((0.236593, 0.763407), abs=1e-6)
    for share, count in ((0.0, 164), (1.0, 164), (0.25, 4), (0.9, 1000)):
        low, high = wilson(share, count)
        assert 0 <= low <= share <= high <= 1
        for bound in {low, high} - {0.0, 1.0}:  # the bounds solve |share - p| = z sqrt(p (1 - p) / n)
            assert abs(share - bound) == pytest.approx(
                1.959964 * math.sqrt(bound * (1 - bound) / count), rel=1e-5
            )


def test_a_rate_over_runs() -> None:
    runs = [[True, False, True, False], [True, True, True, False], [True, False, False, False]]
    figure = rate(runs)
    assert figure.value == pytest.approx(0.5)
    assert figure.sd == pytest.approx(statistics.stdev([0.5, 0.75, 0.25]))
    assert (figure.low, figure.high) == wilson(0.5, 4)
    one = rate([[True, False]])
    assert (one.value, one.sd) == (0.5, None)
    assert one.low is not None
    assert rate([[True]]).low is None
    assert rate([]).value is None
