"""What Landlock is asked for: reading below a few folders, and nothing else on the file system or the network.

Linux ``Documentation/userspace-api/landlock.rst``. Each ABI version knows more rights than the one before; a ruleset
names all that the running kernel knows, so that all are refused but those that a rule gives back. What no version
looks at (as of 7): ``stat``, ``chdir``, ``chmod``, ``chown`` and opening with ``O_PATH``; the filter of system calls
refuses those that change something.
"""

from __future__ import annotations

import ctypes
import struct

_CREATE_RULESET = 444  # on every architecture
_VERSION_FLAG = 1
READ_FILE, READ_DIR = 1 << 2, 1 << 3
# ABI -> how many of the file rights it knows, counted from bit 0.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_NETWORK_ABI, _NETWORK = 4, 0b11  # TCP bind and connect
_SCOPE_ABI, _SCOPES = 6, 0b11  # abstract sockets, signals


def abi() -> int:
    """The kernel's Landlock version; 0 where it has none, it is switched off, or the system is not Linux."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return max(0, int(libc.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)))
    except (OSError, TypeError, AttributeError):  # no C library by that name: not a Unix
        return 0


def ruleset(version: int) -> bytes:
    """``struct landlock_ruleset_attr`` of a version: everything that it knows is refused.

    Args:
        version: at least 1; of a later one than 7 what 7 knows.
    """
    files = (1 << _FILE_RIGHTS[min(version, max(_FILE_RIGHTS))]) - 1
    if version >= _SCOPE_ABI:
        return struct.pack("<QQQ", files, _NETWORK, _SCOPES)
    if version >= _NETWORK_ABI:
        return struct.pack("<QQ", files, _NETWORK)
    return struct.pack("<Q", files)
