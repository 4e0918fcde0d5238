"""Giving up root: a NIC needs root only to open things, before it forwards the first frame.

As root it opens network namespaces, the TAP, packet sockets with large buffers, the flow table, the trace, and the
control socket in a directory that belongs to root. From then on these are descriptors or mappings, whose use needs no
rights. A process that parses frames from a network should not be root.

The order follows from the way Linux keeps rights. No-new-privileges, the bounding set and the inheritable set belong to
a thread, and a new thread inherits them: :func:`forgo` gives them up before the NIC starts a thread. User and group ids
must stay until everything is open. Then :func:`drop` gives them up through libc, which does so in every thread of the
process (nptl(7)). When a thread loses its last user id 0, the kernel clears its permitted, effective and ambient sets
(capabilities(7)). Finally :func:`drop` checks every thread; if one still has a right, the NIC does not start.

Only root can start a NIC that gives up its rights. Another user with capabilities has no user id 0 to lose. And
capset(2) changes only the calling thread, not the threads of libraries that are loaded already (OpenBLAS has one per
core). So :func:`forgo` refuses such a user at once.

Afterwards the process cannot remove the control socket's file, unless its user may write to the directory. The next NIC
with this path replaces a socket on which no process answers.
"""

import ctypes
import errno
import os
import pwd
from pathlib import Path
from typing import Final

from netoffload.errors import SystemRefusedError, UsageError

ROOT: Final = "root"

# linux/prctl.h, linux/capability.h
_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_READ: Final = 23
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION_3: Final = 0x20080522
_LAST_CAPABILITY: Final = Path("/proc/sys/kernel/cap_last_cap")
_TASKS: Final = Path("/proc/self/task")

_SETS: Final = ("CapInh", "CapPrm", "CapEff", "CapAmb")

_libc = ctypes.CDLL(None, use_errno=True)


def find_user(name: str) -> tuple[int, int]:
    """Return user and group id of ``name``."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise UsageError(
            f"user {name!r} is unknown: --user takes a name of /etc/passwd, or root to stay root"
        ) from error
    return entry.pw_uid, entry.pw_gid


def forgo() -> None:
    """Give up all ways to regain rights: new privileges by exec, and the bounding, inheritable and ambient sets.

    Call it before the first thread starts; the present rights stay usable.
    """
    if os.geteuid() != 0:
        raise SystemRefusedError("only root can give up its rights: start the NIC with sudo (--user root keeps them)")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "set no-new-privileges")
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, "empty the ambient set")
    for capability in range(int(_LAST_CAPABILITY.read_text()) + 1):
        if _libc.prctl(_PR_CAPBSET_READ, ctypes.c_ulong(capability), 0, 0, 0) == 1:
            _prctl(_PR_CAPBSET_DROP, capability, "empty the bounding set", "CAP_SETPCAP")


def drop(user: str) -> None:
    """Become ``user`` without capabilities in any thread, and keep other processes from reading this one's memory."""
    uid, gid = find_user(user)
    needed = "CAP_SETGID"
    try:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        needed = "CAP_SETUID"
        os.setresuid(uid, uid, uid)
    except OSError as error:
        raise SystemRefusedError(_refusal(f"become user {user}", error.errno, needed)) from error
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    if _libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:  # three empty sets, for this thread
        raise SystemRefusedError(f"cannot give up capabilities: {os.strerror(ctypes.get_errno())}")
    _prctl(_PR_SET_DUMPABLE, 0, "become undumpable")
    _check_every_thread()


def _check_every_thread() -> None:
    for task in _TASKS.iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):  # a thread that answered a client has ended
            continue
        status = dict(line.split(":", 1) for line in lines if ":" in line)
        left = [name for name in _SETS if int(status[name], 16) != 0]
        if left:
            raise SystemRefusedError(
                f"thread {task.name} still has capabilities ({', '.join(left)}): start the NIC with --user root"
            )


def _prctl(option: int, argument: int, purpose: str, needed: str = "") -> None:
    if _libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        raise SystemRefusedError(_refusal(purpose, ctypes.get_errno(), needed))


def _refusal(purpose: str, number: int | None, needed: str) -> str:
    """Return one line about the step that failed, with the missing capability if that is the reason."""
    if number == errno.EPERM and needed:
        return f"cannot {purpose}: {needed} is missing: start the NIC with it, or with --user root to stay root"
    return f"cannot {purpose}: {os.strerror(number or 0)} (--user root stays root)"
