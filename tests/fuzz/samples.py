"""Good frames of every kind, from which :mod:`tests.fuzz.frames` makes bad ones. Plain Python, made once."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from netoffload.codec import CODECS, CodecId
from netoffload.compiled.arrays import Float64Array, Int64Array, Uint8Array
from netoffload.config import TOS_COMPRESS
from netoffload.engine.pack import proof_of
from netoffload.wire import capability, encapsulation, ethernet, icmp, ipv4, offload, tcp, udp, vnet
from netoffload.wire.checksum import internet_checksum
from tests.shared import formats

ISN: Final = 1000
PEER_ISN: Final = 5000
SPORT: Final = 40000
DPORT: Final = 5001
HANDSHAKE_STEPS: Final = 3
FROM_PEER: Final = 1
"""The step of a handshake that comes from the wire."""

_HOST, _PEER = b"\x02\0\0\0\0\x01", b"\x02\0\0\0\0\x02"
_ADDRESSES: Final = {
    4: (bytes((10, 98, 1, 1)), bytes((10, 98, 1, 2))),
    6: (bytes.fromhex("fd98") + bytes(13) + b"\x01", bytes.fromhex("fd98") + bytes(13) + b"\x02"),
}
_MSS: Final = 1448
_TIMESTAMPS: Final = bytes.fromhex("0101080a0000303900010932")
_SYN_OPTIONS: Final = bytes.fromhex("020405b50402080a000030390000000001030307")
"""MSS 1461, SACK permitted, timestamps, window scale."""
_MD5: Final = bytes((19, 18)) + bytes(16) + b"\x01\x01"
_VALUES: Final = np.random.default_rng(7).normal(0, 0.05, 5000).astype(np.float32)
_PAYLOADS: Final = (0, 1, 4, 64, 257, 1448, 9001, 20000)
_FLAGS: Final = (
    tcp.ACK_FLAG,
    tcp.ACK_FLAG | tcp.PSH | tcp.FIN,
    tcp.ACK_FLAG | tcp.URG,
    tcp.ACK_FLAG | tcp.CWR,
    tcp.RST,
)


class Samples(NamedTuple):
    """Frames with virtio-net header: uint8[frames, longest] with zeros behind each, int64[frames] lengths.

    ``shares`` says how often to take each; their sum is 1. SYNs are rare, because they reset flows.
    """

    octets: Uint8Array
    lengths: Int64Array
    shares: Float64Array


def make_samples() -> Samples:
    """Return every sample."""
    kinds = ((_segments, 1.5), (_blocks, 0.7), (_syns, 0.1), (_acknowledgements, 0.5), (_errors, 0.3))
    weighted = [(frame, weight) for version in (4, 6) for make, weight in kinds for frame in make(version)]
    frames = [frame for frame, _ in weighted]
    others = [
        b"",
        bytes(9),
        bytes(60),
        _with_vnet(_HOST + _PEER + b"\x08\x06" + bytes(28)),
        _with_vnet(_HOST + _PEER + b"\x81\x00\x00\x05" + frames[3][22:]),
    ]
    weights = np.array([weight for _, weight in weighted] + [0.5] * len(others))
    frames += others
    octets = np.zeros((len(frames), max(map(len, frames))), np.uint8)
    for row, frame in zip(octets, frames, strict=True):
        row[: len(frame)] = np.frombuffer(frame, np.uint8)
    return Samples(octets, np.array([len(frame) for frame in frames], np.int64), weights / weights.sum())


def make_handshakes() -> Uint8Array:
    """Return the frames that make a connection, uint8[HANDSHAKE_STEPS, families, octets], for IPv4 and IPv6.

    The host's SYN, its peer's SYN/ACK with the capability word (``FROM_PEER``), and a SYN from the peer's address.
    """
    word = capability.emit_capability()
    flags = tcp.SYN | tcp.ACK_FLAG
    steps = (
        [_frame(version, _header(tcp.SYN, ISN), b"") for version in (4, 6)],
        [_frame(version, _header(flags, PEER_ISN, word, back=True, ack=ISN + 1), b"", back=True) for version in (4, 6)],
        [_frame(version, _header(tcp.SYN, PEER_ISN, back=True), b"", back=True) for version in (4, 6)],
    )
    length = max(len(frame) for frames in steps for frame in frames)
    return np.array([[np.frombuffer(frame.ljust(length, b"\0"), np.uint8) for frame in frames] for frames in steps])


def _segments(version: int) -> Iterator[bytes]:
    for length in _PAYLOADS:
        payload = _VALUES.tobytes()[:length]
        yield _frame(version, _header(tcp.ACK_FLAG, ISN + 1, _TIMESTAMPS), payload)
        yield _frame(version, _header(tcp.ACK_FLAG | tcp.PSH, ISN + 1), payload)
    for flags in _FLAGS:
        yield _frame(version, _header(flags, ISN + 1), _VALUES.tobytes()[:1000])
    yield _frame(version, _header(tcp.ACK_FLAG, ISN + 1, _MD5), _VALUES.tobytes()[:1000])
    yield _frame(version, _header(tcp.ACK_FLAG, ISN + 1), _VALUES.tobytes()[:1000], tos=0)
    yield _frame(version, _header(tcp.ACK_FLAG, ISN + 1, sport=9), _VALUES.tobytes()[:1000])
    yield _frame(version, _header(tcp.ACK_FLAG, ISN + 1), np.full(500, 3, np.float32).tobytes())


def _syns(version: int) -> Iterator[bytes]:
    word = capability.emit_capability()
    for flags in (tcp.SYN, tcp.SYN | tcp.ACK_FLAG):
        for options in (b"", _SYN_OPTIONS, word, _SYN_OPTIONS + word, bytes([1] * 40)):
            yield _frame(version, _header(flags, ISN, options), b"")
            yield _frame(version, _header(flags, PEER_ISN, options, back=True), b"", back=True)
        yield _frame(version, _header(flags, ISN, _SYN_OPTIONS), b"early data")
        yield _frame(version, _header(flags, ISN, _SYN_OPTIONS), b"", tos=0)


def _acknowledgements(version: int) -> Iterator[bytes]:
    """Segments of the peer that acknowledge some of the host's stream, on the edges of floats and between."""
    for acked in (0, 1, 2, 4, 1000, 1447, 20_000, 40_003):
        yield _frame(version, _header(tcp.ACK_FLAG, PEER_ISN + 1, back=True, ack=ISN + 1 + acked), b"", back=True)
    yield _frame(version, _header(tcp.FIN | tcp.ACK_FLAG, ISN + 1), b"")
    yield _frame(version, _header(tcp.FIN | tcp.ACK_FLAG, ISN + 3), b"")


def _errors(version: int) -> Iterator[bytes]:
    """Errors of a router about a block and about a plain segment, quoted in full and as far as RFC 792 asks."""
    family = ethernet.ETHERNET_LEN + vnet.VNET_LEN
    quoted = [next(_blocks(version)), list(_blocks(version))[1], list(_segments(version))[4]]
    v4 = ((3, 4, 1400), (3, 3, 0), (11, 0, 0))
    v6 = ((2, 0, 1400), (1, 4, 0), (3, 0, 0))
    for frame in quoted:
        for kind, code, mtu in v4 if version == 4 else v6:
            for octets in (28 if version == 4 else 48, 200):
                message = bytes((kind, code, 0, 0)) + mtu.to_bytes(4, "big") + frame[family:][:octets]
                src, dst = _ADDRESSES[version][::-1]
                pseudo = b"" if version == 4 else src + dst + len(message).to_bytes(4, "big") + b"\0\0\0\x3a"
                total = internet_checksum(pseudo + message)
                message = message[:2] + total.to_bytes(2, "big") + message[4:]
                protocol = icmp.PROTO_ICMP if version == 4 else icmp.PROTO_ICMPV6
                yield _with_vnet(_datagram(version, protocol, message, tos=0, back=True))


def _blocks(version: int) -> Iterator[bytes]:
    src, dst = _ADDRESSES[version]
    for codec_id, codec in CODECS.items():
        for count, head, tail, gso_size, flags in (
            (0, 1, 2, 0, 0),
            (5, 0, 0, 0, tcp.PSH),
            (300, 0, 0, _MSS, 0),
            (301, 3, 1, _MSS, tcp.FIN),
        ):
            bursts = codec.oracle.encode(_VALUES[:count], 10).tobytes()
            half = count // 2 // offload.BURST_FLOATS if gso_size else 0
            block = formats.Block(
                codec=int(codec_id),
                bound_k=10,
                head=head,
                tail=tail,
                payload_len=head + 4 * count + tail,
                gso_size=gso_size,
                tcp_header=_proved(_header(tcp.ACK_FLAG | flags, ISN + 1, _TIMESTAMPS)),
                payload=bytes(head) + bursts + bytes(tail),
                half_bursts=half,
                half_len=codec.oracle.encode(_VALUES[: offload.BURST_FLOATS * half], 10).size,
            )
            octets = formats.emit_block(block, src, dst)
            yield _with_vnet(_datagram(version, offload.PROTO_IPCOMP, octets))
            yield _in_udp(version, [octets], 0)
    first, second = (
        formats.emit_block(
            formats.Block(
                codec=int(CodecId.NONE),
                bound_k=10,
                head=0,
                tail=0,
                payload_len=4 * count,
                gso_size=_MSS,
                tcp_header=_proved(_header(tcp.ACK_FLAG, seq)),
                payload=_VALUES[:count].tobytes(),
            ),
            src,
            dst,
        )
        for count, seq in ((300, ISN + 1), (290, ISN + 1201))
    )
    yield _in_udp(version, [first, second, second], 1300)


def _in_udp(version: int, blocks: list[bytes], datagram_len: int) -> bytes:
    """Return a frame with a bundle; with one block, a datagram."""
    payload = formats.emit_entries(blocks, datagram_len)
    octets = formats.emit_udp(formats.Udp(formats.src_port(SPORT, DPORT), encapsulation.UDP_PORT), payload)
    frame = _datagram(version, udp.PROTO_UDP, octets)
    start = len(frame) - len(octets)
    gso_type = vnet.GSO_UDP_L4 if datagram_len else vnet.GSO_NONE
    return formats.emit_vnet(
        formats.Vnet(vnet.NEEDS_CSUM, gso_type, start + udp.UDP_LEN, datagram_len, start, udp.UDP_CHECKSUM), frame
    )


def _proved(header: formats.Tcp) -> bytes:
    """Return the TCP header of a block to a peer whose nonce is 0, so that errors about the block count."""
    octets = bytearray(formats.emit_tcp(header, b""))
    octets[tcp.CHECKSUM : tcp.CHECKSUM + 2] = int(proof_of(0, header.seq)).to_bytes(2, "big")
    return bytes(octets)


def _header(
    flags: int, seq: int, options: bytes = b"", back: bool = False, sport: int = SPORT, ack: int = 1
) -> formats.Tcp:
    ports = (DPORT, sport) if back else (sport, DPORT)
    return formats.Tcp(*ports, seq=seq, ack=ack, flags=flags, window=500, options=options)


def _frame(version: int, header: formats.Tcp, payload: bytes, tos: int = TOS_COMPRESS, back: bool = False) -> bytes:
    frame = _datagram(version, tcp.PROTO_TCP, formats.emit_tcp(header, payload), tos, back)
    is_large = len(payload) > _MSS
    gso_type = vnet.GSO_TCPV4 if version == 4 else vnet.GSO_TCPV6
    start = len(frame) - len(payload) - tcp.TCP_MIN_LEN - len(header.options)
    return formats.emit_vnet(
        formats.Vnet(
            vnet.NEEDS_CSUM,
            gso_type if is_large else vnet.GSO_NONE,
            len(frame) - len(payload),
            _MSS if is_large else 0,
            start,
            tcp.CHECKSUM,
        ),
        frame,
    )


def _datagram(version: int, protocol: int, payload: bytes, tos: int = TOS_COMPRESS, back: bool = False) -> bytes:
    src, dst = _ADDRESSES[version][::-1] if back else _ADDRESSES[version]
    if version == 4:
        octets = formats.emit_ipv4(formats.Ipv4(tos, 7, ipv4.FLAG_DF, 64, protocol, src, dst), payload)
        return formats.emit_ethernet(formats.Ethernet(_PEER, _HOST, ethernet.ETHERTYPE_IPV4), octets)
    octets = formats.emit_ipv6(formats.Ipv6(tos, 5, protocol, 64, src, dst), payload)
    return formats.emit_ethernet(formats.Ethernet(_PEER, _HOST, ethernet.ETHERTYPE_IPV6), octets)


def _with_vnet(frame: bytes) -> bytes:
    return formats.emit_vnet(formats.Vnet(), frame)
