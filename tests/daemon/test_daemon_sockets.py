"""Which ToS real sockets have: the loop's questions against what the program set."""

import contextlib
import os
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from netoffload.devices.sock_diag import open_sock_diag
from netoffload.engine import flows, promises
from netoffload.engine.nic import make_settings, make_state
from netoffload.engine.state import NicState
from netoffload.errors import SystemRefusedError
from netoffload_daemon.sockets import answer_questions, make_diag

try:
    open_sock_diag(None).close()
except SystemRefusedError as refusal:
    pytest.skip(str(refusal), allow_module_level=True)

FAMILIES = {"ipv4": (socket.AF_INET, "127.0.0.1"), "ipv6": (socket.AF_INET6, "::1")}


@contextlib.contextmanager
def connection(
    family: str, tos: int, device: bytes = b""
) -> Iterator[tuple[socket.socket, socket.socket, socket.socket]]:
    """A listener, a connected socket with this ToS, and the socket that was accepted."""
    number, address = FAMILIES[family]
    with socket.socket(number) as listener, socket.socket(number) as near:
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip(f"this machine has no address {address}")
        listener.listen()
        if number == socket.AF_INET:
            near.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        else:
            near.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
        if device:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
        near.connect(listener.getsockname())
        far, _ = listener.accept()
        with far:
            yield listener, near, far


def know(nic: NicState, own: tuple[str, int], peer: tuple[str, int]) -> int:
    """Raise the question about a connection; return its slot."""
    ends = [socket.inet_pton(socket.AF_INET if "." in name else socket.AF_INET6, name) for name, _ in (own, peer)]
    version = 4 if len(ends[0]) == 4 else 6
    src, dst = (np.frombuffer(end.rjust(16, b"\0"), ">i8").tolist() for end in ends)
    key = flows.FlowKey(version, src[0], src[1], dst[0], dst[1], own[1] << 16 | peer[1])
    slot = int(flows.make_slot(nic.flows, key, 0))
    nic.flows[slot, flows.PEER_CODECS] = 1
    promises.raise_question(nic, slot, True)
    assert nic.flows[slot, flows.PROMISE] == promises.ASKED
    return slot


@pytest.fixture
def asking() -> NicState:
    return make_state(make_settings()._replace(trust=0))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tos", [0, 0x28, 0x48, 0xFC])
def test_the_loop_hears_what_the_program_set(asking: NicState, family: str, tos: int) -> None:
    with connection(family, tos) as (_, near, far), open_sock_diag(None) as diag:
        for own, tos_set in ((near, tos), (far, 0)):
            ends = own.getsockname()[:2], own.getpeername()[:2]
            slot = know(asking, *ends)
            answer_questions(asking, make_diag(diag.fileno()))
            wanted = promises.BY_SOCKET if tos_set == 0x28 else promises.REFUSED
            assert asking.flows[slot, flows.PROMISE] == wanted
            assert promises.count_questions(asking) == 0


def test_many_questions_at_once_get_their_own_answers(asking: NicState) -> None:
    with contextlib.ExitStack() as stack:
        diag = stack.enter_context(open_sock_diag(None))
        slots = {}
        for number in range(20):
            tos = 0x28 if number % 3 else 0
            _, near, _ = stack.enter_context(connection("ipv4", tos))
            slots[know(asking, near.getsockname(), near.getpeername())] = tos
        answer_questions(asking, make_diag(diag.fileno()))
        for slot, tos in slots.items():
            assert asking.flows[slot, flows.PROMISE] == (promises.BY_SOCKET if tos else promises.REFUSED)


def test_a_listener_and_a_stranger_promise_nothing(asking: NicState) -> None:
    with connection("ipv4", 0x28) as (listener, near, _), open_sock_diag(None) as diag:
        listener.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x28)
        port = listener.getsockname()[1]
        for own, peer in (
            (("127.0.0.1", port), ("127.0.0.1", 1)),  # the kernel answers with the listener of this port
            (("192.0.2.1", 40_000), ("192.0.2.2", near.getsockname()[1])),
        ):
            slot = know(asking, own, peer)
            answer_questions(asking, make_diag(diag.fileno()))
            assert asking.flows[slot, flows.PROMISE] == promises.NO_SOCKET


def test_a_question_that_cannot_be_asked_stays_open(asking: NicState) -> None:
    slot = know(asking, ("127.0.0.1", 40_000), ("127.0.0.1", 5001))
    answer_questions(asking, make_diag(-1))
    assert asking.flows[slot, flows.PROMISE] == promises.UNASKED
    assert promises.count_questions(asking) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to bind a socket to a device")
def test_a_socket_that_is_bound_to_the_hosts_device_is_found(asking: NicState) -> None:
    with connection("ipv4", 0x28, device=b"lo") as (_, near, _), open_sock_diag(None) as diag:
        slot = know(asking, near.getsockname(), near.getpeername())
        answer_questions(asking, make_diag(diag.fileno(), socket.if_nametoindex("lo")))
        assert asking.flows[slot, flows.PROMISE] == promises.BY_SOCKET
