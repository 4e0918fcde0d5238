"""Strangers: what another user, another namespace, a recording or a thousand idle connections do to ranks: nothing."""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from netoffload.collectives import barrier
from netoffload.netlink import Namespace, index_of, remove_netns
from netoffload.transport.messages.frames import Frame, Kind
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload.transport.wiring import nearby
from netoffload.transport.wiring.hello import HELLO_OCTETS, Hello, Step
from netoffload.transport.wiring.joining import STRANGERS_MAX
from netoffload.transport.wiring.lanes import EVERY, Lane
from tests.transport.tcp_ranks import run_tcp

PROGRAM = str(Path(__file__).with_name("programs") / "guarded_ranks.py")
NOBODY = 65534
HOST = "127.0.0.1"
STRANGERS = 1000
WELL = [{"received": [value] * 4, "sum": 3.0} for value in (7.0, 0.0, 0.0)]


@contextlib.contextmanager
def guarded(address: str = HOST, files: int = 4096, netns: str | None = None) -> Iterator[dict[str, Any]]:
    """Let three ranks wait; yield where rank 0 listens. Afterwards they must do well."""
    inside = [] if netns is None else ["ip", "netns", "exec", netns]
    words = [*inside, sys.executable, PROGRAM, address, str(files)]
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as ranks:
        assert ranks.stdin is not None
        assert ranks.stdout is not None
        yield json.loads(ranks.stdout.readline())
        ranks.stdin.write("\n")
        ranks.stdin.flush()
        assert json.loads(ranks.stdout.readline()) == {"results": WELL, "threads": []}


def as_user(user: int, function: Callable[[], Any]) -> Any:
    """Return what ``function`` returns in a child that belongs to another user."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setresuid(user, user, user)
            os.write(writer, json.dumps(function()).encode())
        except BaseException as error:
            os.write(writer, json.dumps(repr(error)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        octets = answer.read()
    os.waitpid(child, 0)
    return json.loads(octets)


def connected(address: str, port: int) -> socket.socket:
    """Return a connection; ``create_connection`` would import a codec, which another user may not read."""
    conn = socket.socket()
    conn.connect((address, port))
    return conn


def heard_by(conn: socket.socket, octets: bytes) -> str:
    """Say something on a connection; return what came back, in hexadecimal digits."""
    heard = b""
    conn.settimeout(20)
    with conn, contextlib.suppress(ConnectionError):
        conn.sendall(octets)
        while more := conn.recv(65536):
            heard += more
    return heard.hex()


def forge(ports: list[int], name: str, address: str = HOST) -> list[str]:
    """Speak as rank 2 to rank 0 at every door and on every lane, with what a stranger knows; return what came back."""
    heard = []
    for lane in Lane:
        for secret in (bytes(32), bytes.fromhex(name.rpartition("-")[2])):
            call = Hello(Step.CALL, 2, 0, lane, 1 if lane in (Lane.UNTAGGED, Lane.TAGGED) else EVERY).sealed(secret)
            octets = call.to_octets() + Frame(Kind.MESSAGE, tag=5, count=4, context=1).to_octets()
            heard += [heard_by(connected(address, port), octets) for port in ports]
            near = socket.socket(socket.AF_UNIX)
            near.connect("\0" + name)
            heard.append(heard_by(near, octets))
    return heard


@pytest.mark.slow
@pytest.mark.parametrize("user", [NOBODY, os.geteuid()])
def test_who_knows_ports_and_names_cannot_speak_as_a_rank(user: int) -> None:
    if user != os.geteuid() and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with guarded() as doors:
        names = as_user(user, lambda: Path("/proc/net/unix").read_text().split())
        assert "@" + doors["name"] in names  # everybody sees it
        assert as_user(user, lambda: forge(doors["ports"], doors["name"])) == [""] * 24


@pytest.mark.slow
def test_a_thousand_idle_strangers_take_no_ranks_descriptors() -> None:
    with guarded(files=256) as doors, contextlib.ExitStack() as strangers:
        for number in range(STRANGERS):
            port = doors["ports"][number % 2]
            strangers.enter_context(socket.create_connection((HOST, port), 20))
            if number % 4 == 0:
                near = strangers.enter_context(socket.socket(socket.AF_UNIX))
                near.setblocking(False)
                near.connect_ex("\0" + doors["name"])


def give_address(namespace: Namespace, link: str, address: str) -> None:
    namespace.request(
        "give an address", lambda links: links.addr("add", index=index_of(links, link), address=address, prefixlen=24)
    )


@pytest.mark.slow
@pytest.mark.netns
def test_from_another_namespace_no_name_is_seen_and_no_hello_is_taken() -> None:
    first, second = (f"not-{secrets.token_hex(3)}-{end}" for end in "ab")
    with contextlib.ExitStack() as made:
        for name in (first, second):
            made.callback(remove_netns, name)
        here, there = (made.enter_context(Namespace.create(name)) for name in (first, second))
        here.add_veth("v0", "v1", second, 1500)
        for namespace, link, host in ((here, "v0", 1), (there, "v1", 2)):
            namespace.set_up("lo")
            namespace.set_up(link)
            give_address(namespace, link, f"10.97.0.{host}")
        with guarded("10.97.0.1", netns=first) as doors:

            def speak() -> list[str]:
                with pytest.raises(ConnectionRefusedError), socket.socket(socket.AF_UNIX) as near:
                    near.connect("\0" + doors["name"])
                call = Hello(Step.CALL, 2, 0, Lane.CONTROL).sealed(bytes(32)).to_octets()
                return [heard_by(connected("10.97.0.1", port), call) for port in doors["ports"]]

            assert there.call(speak) == ["", ""]


def test_a_recorded_handshake_does_not_open_a_door_twice() -> None:
    def body(exchange: TcpExchange) -> list[str] | None:
        barrier(exchange)
        if exchange.rank != 0:
            return None
        joiner = exchange.watch._links._joiner
        address, secret = joiner._listeners[0].getsockname(), joiner._secret
        call = Hello(Step.CALL, 1, 0, Lane.UNTAGGED, 9).sealed(secret)

        def handshake(proves: Callable[[Hello], Hello], wait_s: float = 20) -> tuple[Hello, str]:
            with socket.create_connection(address, 20) as conn:
                conn.sendall(call.to_octets())
                answer = Hello.from_octets(conn.recv(HELLO_OCTETS, socket.MSG_WAITALL))
                assert answer is not None
                assert answer.is_sealed(secret, call.nonce)
                conn.sendall(proves(answer).to_octets())
                conn.settimeout(wait_s)
                try:
                    return answer, conn.recv(1).hex()
                except TimeoutError:
                    return answer, "it stands"
                except ConnectionResetError:
                    return answer, ""

        def proof(answer: Hello) -> Hello:
            return Hello(Step.PROOF, 1, 0, Lane.UNTAGGED, 9, call.nonce).sealed(secret, answer.nonce)

        answer, _ = handshake(lambda _: call)  # whose proof was recorded
        heard = [handshake(lambda _: proof(answer))[1], handshake(proof, 0.3)[1]]
        barrier(exchange)
        return heard

    def other(exchange: TcpExchange) -> list[str] | None:
        found = body(exchange)
        if exchange.rank != 0:
            barrier(exchange)
        return found

    assert run_tcp(2, other)[0] == ["", "it stands"]


def test_each_field_of_a_hello_is_sealed() -> None:
    secret, heard = secrets.token_bytes(32), secrets.token_bytes(16)
    hello = Hello(Step.ANSWER, 3, 4, Lane.TAGGED, 7).sealed(secret, heard)
    assert hello.is_sealed(secret, heard)
    assert not hello.is_sealed(secret)
    assert not hello.is_sealed(bytes(32), heard)
    for field, value in (("step", Step.PROOF), ("rank", 4), ("to", 3), ("lane", Lane.UNTAGGED), ("context", 8)):
        facts = {name: getattr(hello, name) for name in ("step", "rank", "to", "lane", "context", "nonce", "mac")}
        assert not Hello(**facts | {field: value}).is_sealed(secret, heard)
    assert not Hello(Step.ANSWER, 3, 4, Lane.TAGGED, 7, bytes(16), hello.mac).is_sealed(secret, heard)


def test_the_kernel_says_whose_a_connection_is() -> None:
    token = secrets.token_bytes(16)
    assert token.hex() not in nearby.name_of(token)
    with nearby.listen(token) as listener:
        near = nearby.connect(token)
        assert near is not None
        with near, listener.accept()[0] as accepted:
            assert nearby.is_trusted(accepted)
        if os.geteuid() == 0:
            assert as_user(NOBODY, lambda: nearby.connect(token) is None) is True  # it would speak to another user
            stranger = socket.socket(socket.AF_UNIX)
            assert as_user(NOBODY, lambda: stranger.connect(nearby.name_of(token))) is None
            with stranger, listener.accept()[0] as accepted:
                assert not nearby.is_trusted(accepted)


def test_only_the_newest_strangers_stay() -> None:
    def body(exchange: TcpExchange) -> int:
        barrier(exchange)
        if exchange.rank == 1:
            barrier(exchange)
            return 0
        joiner = exchange.watch._links._joiner
        with contextlib.ExitStack() as strangers:
            conns = [
                strangers.enter_context(socket.create_connection(joiner._listeners[0].getsockname(), 20))
                for _ in range(2 * STRANGERS_MAX)
            ]
            for conn in conns[:STRANGERS_MAX]:
                conn.settimeout(20)
                assert conn.recv(1) == b""
            barrier(exchange)
            return len(joiner._opening)

    assert run_tcp(2, body) == [STRANGERS_MAX, 0]
