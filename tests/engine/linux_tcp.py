"""A model of what Linux' TCP does with a stream between two NICs: how it cuts, what it sends again, what it keeps.

The receiver follows ``tcp_input.c``: a segment in order wins over segments that wait out of order. Of overlapping
segments that wait, the one that begins earlier wins, and a covered one is dropped. A segment that ends behind the
window is refused. ``tests/netns/test_netns_torn.py`` tests the same NICs with the real TCP.
"""

from dataclasses import dataclass, field

from netoffload.config import TOS_COMPRESS
from netoffload.wire import vnet
from netoffload.wire.tcp import FIN
from tests.engine.frames import make_segment, tcp_of
from tests.engine.nic_pair import Nic
from tests.shared.formats import parse_vnet

PEER_ISN = 5


@dataclass
class Receiver:
    """Where octets go that the NIC hands to the host."""

    isn: int
    window: int
    got: bytearray = field(default_factory=bytearray)
    waiting: list[tuple[int, bytes]] = field(default_factory=list)
    has_fin: bool = False
    fin_at: int | None = None

    def take(self, frame: bytes) -> None:
        """Take one segment; a large one is one."""
        header, payload = tcp_of(frame)
        start = (header.seq - self.isn - 1 + 2**31) % 2**32 - 2**31
        if start + len(payload) > len(self.got) + self.window:
            return
        if header.flags & FIN:
            self.fin_at = start + len(payload)
        if start > len(self.got):
            self._wait(start, payload)
        else:
            self.got += payload[len(self.got) - start :]
            self._join()
        self.has_fin = self.fin_at == len(self.got)

    def _wait(self, start: int, payload: bytes) -> None:
        end = start + len(payload)
        if any(at <= start and end <= at + len(octets) for at, octets in self.waiting):
            return
        self.waiting = [one for one in self.waiting if not (start <= one[0] and one[0] + len(one[1]) <= end)]
        self.waiting = sorted([*self.waiting, (start, payload)], key=lambda one: one[0])

    def _join(self) -> None:
        while self.waiting and self.waiting[0][0] <= len(self.got):
            start, payload = self.waiting.pop(0)
            self.got += payload[max(len(self.got) - start, 0) :]

    def ack(self) -> int:
        """Return what is acknowledged, octets of the stream and the FIN."""
        return len(self.got) + int(self.has_fin)


@dataclass
class Sender:
    """A host that sends ``stream``; ``cuts`` are the edges of what it keeps to send again."""

    stream: bytes
    nic: Nic
    isn: int
    ipv6: bool
    mss: int
    edge: int
    written: int = 0
    una: int = 0
    next: int = 0
    cuts: set[int] = field(default_factory=lambda: {0})
    write_ends: set[int] = field(default_factory=set)
    has_closed: bool = False
    fin_sent: bool = False
    tos: int = TOS_COMPRESS
    untagged: list[tuple[int, int]] = field(default_factory=list)
    """Parts of the stream that left without the tag when they were sent first."""

    def write(self, octets: int) -> None:
        """Write to the socket."""
        self.written = min(self.written + octets, len(self.stream))
        self.write_ends.add(self.written)

    def send_new(self, segments: int) -> list[bytes]:
        """Send what the window allows, at most so many segments, as one large one."""
        end = min(self.written, self.edge, self.next + segments * self.mss)
        if end <= self.next and not (self.has_closed and not self.fin_sent and self.next == len(self.stream)):
            return []
        start, self.next = self.next, max(end, self.next)
        self.cuts |= {start, self.next}
        if self.tos != TOS_COMPRESS:
            self.untagged.append((start, self.next))
        return self._emit(start, self.next)

    def ask_for_window(self) -> list[bytes]:
        """Send what Linux sends where the window is full and more was written: a header before the stream's end."""
        return [] if self.next == self.written or self.next < self.edge else self._emit(self.next - 1, self.next - 1)

    def send_again(self, start: int, segments: int = 1) -> list[bytes]:
        """Send a part again that begins at an edge, up to the next edge or so many segments."""
        start = max(start, self.una)
        later = [cut for cut in self.cuts if cut > start]
        end = min([*later, self.next])
        end = min(end, start + segments * self.mss)
        self.cuts.add(end)
        if end <= start and not self.fin_sent:
            return []
        return self._emit(start, end)

    def _emit(self, start: int, end: int) -> list[bytes]:
        is_end = self.has_closed and end == len(self.stream)
        self.fin_sent |= is_end
        flags = ("F" if is_end else "") + ("P" if end in self.write_ends else "") + "A"
        return self.nic.from_host(
            make_segment(
                self.stream[start:end],
                seq=(self.isn + 1 + start) % 2**32,
                ack=PEER_ISN + 1,
                gso_size=self.mss if end - start > self.mss else 0,
                flags=flags,
                tos=self.tos,
                ipv6=self.ipv6,
            )
        )

    def take_ack(self, frame: bytes) -> None:
        """Take an acknowledgement that the NIC hands over."""
        header = tcp_of(frame)[0]
        ack = (header.ack - self.isn - 1 + 2**31) % 2**32 - 2**31
        assert ack <= self.next + int(self.fin_sent), "nobody may acknowledge what was not sent"
        if ack >= self.una:
            self.edge = max(self.edge, ack + header.window)
        self.una = max(self.una, min(ack, len(self.stream)))
        self.acked_fin = ack > len(self.stream)

    acked_fin: bool = False


def split(frame: bytes) -> list[bytes]:
    """Return the segments that a plain large frame becomes on the wire; everything else is one."""
    header, _ = parse_vnet(frame)
    if header.gso_type not in (vnet.GSO_TCPV4, vnet.GSO_TCPV6):
        return [frame]
    tcp, payload = tcp_of(frame)
    pieces = [payload[at : at + header.gso_size] for at in range(0, len(payload), header.gso_size)]
    flags = [("F" if tcp.flags & FIN and index == len(pieces) - 1 else "") + "A" for index in range(len(pieces))]
    return [
        make_segment(
            piece,
            seq=(tcp.seq + index * header.gso_size) % 2**32,
            ack=tcp.ack,
            flags=flags[index],
            gso_size=0,
            ipv6=header.gso_type == vnet.GSO_TCPV6,
        )
        for index, piece in enumerate(pieces)
    ]
