"""The kernel's network objects: namespaces, links, addresses, routes, filters. The only package that imports pyroute2.

Linux keeps a network namespace per *thread*. A :class:`Namespace` therefore owns one worker thread that enters the
namespace and stays there, with its own netlink socket. This thread makes every call::

    caller ──call──> worker thread (setns, once) ──rtnetlink──> kernel objects of that namespace
           <─result─

Nothing is forked, because a fork under Numba's or torch's threads is not safe. The caller's namespace never changes,
and one close ends thread, socket and descriptors. Only this package turns refusals of pyroute2 and the kernel into
:class:`~netoffload.errors.NetlinkRefusedError`. ``redirect`` has tc filters, which move frames from one link to
another.
"""

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from pyroute2 import IPRoute, netns
from pyroute2.netlink.exceptions import NetlinkError

from netoffload.errors import NetlinkRefusedError

NETNS_DIR: Final = Path("/run/netns")
"""Where iproute2 keeps the names of namespaces."""

CLONE_NEWNET: Final = 0x40000000  # linux/sched.h

ETH_P_ALL: Final = 3  # linux/if_ether.h

_libc = ctypes.CDLL(None, use_errno=True)
_Result = TypeVar("_Result")

_WHY: Final = {
    errno.EPERM: "not permitted: root (CAP_NET_ADMIN and CAP_SYS_ADMIN) is needed",
    errno.EACCES: "not permitted: root (CAP_NET_ADMIN and CAP_SYS_ADMIN) is needed",
    errno.EEXIST: "it exists already",
    errno.ENODEV: "no such device",
    errno.ENOENT: "it does not exist, or this kernel lacks it",
    errno.EOPNOTSUPP: "this kernel does not support it",
}


def netns_path(name: str) -> Path:
    """Return the file that holds the namespace called ``name``, whether it exists or not."""
    return NETNS_DIR / name


def netns_exists(name: str) -> bool:
    """Say whether a namespace of this name exists."""
    return netns_path(name).exists()


def remove_netns(name: str) -> bool:
    """Remove the name; the namespace and all its links end with its last process. False: no namespace had this name."""

    def remove() -> bool:
        try:
            netns.remove(str(netns_path(name)))
        except FileNotFoundError:  # another process has removed it at the same time
            return False
        return True

    return netns_exists(name) and translated(f"remove network namespace {name}", remove)


class Namespace:
    """A network namespace, and the thread that works in it; a context manager that ends the thread.

    Make one with :meth:`create`, :meth:`open` or :meth:`anonymous`. Closing leaves a named namespace in place
    (:func:`remove_netns` removes it) and ends an anonymous one.
    """

    def __init__(self, name: str, verb: str, enter: Callable[[], None]) -> None:
        """Start the worker thread and let it call ``enter``; ``verb`` names this step in error messages."""
        self.name = name
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"netns-{name}")
        try:
            self._links = self._call(f"{verb} it", lambda: _enter_and_connect(enter))
        except BaseException:
            self._executor.shutdown()
            raise

    @classmethod
    def create(cls, name: str) -> Self:
        """Make a namespace with this name, its loopback up and IPv6 off (no stray router or neighbour frames)."""

        def unshare_and_name() -> None:
            _check_libc(_libc.unshare(CLONE_NEWNET))
            # "/proc/<thread id>/ns/net" is the thread's namespace; "/proc/self" would be the caller's.
            try:
                netns.attach(str(netns_path(name)), threading.get_native_id())
            except FileExistsError:
                raise
            except OSError:
                netns_path(name).unlink(missing_ok=True)  # the file exists, but nothing is mounted on it
                raise

        return cls(name, "make", unshare_and_name)._prepared()

    @classmethod
    def open(cls, name: str) -> Self:
        """Enter the namespace of this name."""

        def setns() -> None:
            descriptor = os.open(netns_path(name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                _check_libc(_libc.setns(descriptor, CLONE_NEWNET))
            finally:
                os.close(descriptor)

        return cls(name, "enter", setns)

    @classmethod
    def anonymous(cls) -> Self:
        """Make a namespace without a name, for experiments: it always ends with its thread."""
        return cls("(unnamed)", "make", lambda: _check_libc(_libc.unshare(CLONE_NEWNET)))._prepared()

    def __enter__(self) -> Self:
        """Return the namespace."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the netlink socket and end the thread."""
        self.close()

    def close(self) -> None:
        """Close the netlink socket and end the thread; a second call does nothing."""
        with contextlib.suppress(RuntimeError):  # already shut down
            self._executor.submit(self._links.close).result()
        self._executor.shutdown()

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Run ``function`` in the namespace (open a socket, a device) and return its result or raise its error."""
        return self._executor.submit(function).result()

    def request(self, what: str, function: Callable[[Any], _Result]) -> _Result:
        """Run ``function`` in the namespace with its pyroute2 ``IPRoute``; ``what`` it does is for errors."""
        return self._call(what, lambda: function(self._links))

    def set_sysctl(self, key: str, value: str) -> None:
        """Write a sysctl of this namespace, written with dots (``net.ipv4.tcp_rmem``)."""
        path = Path("/proc/sys", *key.split("."))
        self._call(f"set {key}={value}", lambda: path.write_text(value))

    def add_veth(self, name: str, peer_name: str, peer_netns: str | None, mtu: int) -> None:
        """Make a veth pair with one end here and the other end in ``peer_netns`` (None: here too)."""

        def add() -> None:
            peer: dict[str, Any] = {"ifname": peer_name, "mtu": mtu}
            with contextlib.ExitStack() as stack:
                if peer_netns is not None:
                    peer["net_ns_fd"] = os.open(netns_path(peer_netns), os.O_RDONLY | os.O_CLOEXEC)
                    stack.callback(os.close, peer["net_ns_fd"])
                self._links.link("add", ifname=name, kind="veth", mtu=mtu, peer=peer)

        self._call(f"make veth {name} to {peer_name} in {peer_netns or self.name}", add)

    def set_up(self, name: str, master: str | None = None) -> None:
        """Set a link up; with ``master``, first make it a port of that bridge."""

        def up() -> None:
            if master is not None:
                self._links.link("set", index=index_of(self._links, name), master=index_of(self._links, master))
            self._links.link("set", index=index_of(self._links, name), state="up")

        self._call(f"set {name} up", up)

    def _prepared(self) -> Self:
        try:
            for scope in ("all", "default"):
                if Path("/proc/sys/net/ipv6/conf", scope).exists():
                    self.set_sysctl(f"net.ipv6.conf.{scope}.disable_ipv6", "1")
            self.set_up("lo")
        except BaseException:
            self.close()
            raise
        return self

    def _call(self, what: str, function: Callable[[], _Result]) -> _Result:
        return translated(f"{what} (network namespace {self.name})", lambda: self.call(function))


def index_of(links: Any, name: str) -> int:
    """Return a link's index; ``links`` is pyroute2's ``IPRoute``."""
    found = links.link_lookup(ifname=name)
    if not found:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), name)
    return int(found[0])


def _enter_and_connect(enter: Callable[[], None]) -> Any:
    enter()
    return IPRoute()


def _check_libc(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def translated(what: str, function: Callable[[], _Result]) -> _Result:
    """Call ``function``, and raise NetlinkRefusedError where it is refused; ``what`` it does is for the error."""
    try:
        return function()
    except NetlinkError as error:
        raise NetlinkRefusedError(f"cannot {what}: {_WHY.get(error.code) or os.strerror(error.code)}") from error
    except OSError as error:
        raise NetlinkRefusedError(f"cannot {what}: {_WHY.get(error.errno or 0) or error.strerror}") from error
