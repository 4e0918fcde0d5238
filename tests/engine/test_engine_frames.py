"""The tests' frames equal scapy's, also where they are not made by scapy."""

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from tests.engine.frames import IPV4_ADDRESSES, IPV6_ADDRESSES, TIMESTAMPS, make_segment
from tests.shared.formats import parse_vnet


@pytest.mark.parametrize("needs_csum", [True, False])
@pytest.mark.parametrize("ipv6", [True, False])
@pytest.mark.parametrize("payload", [b"", b"\1\2\3", bytes(range(256)) * 200])
def test_a_segment_is_scapys(payload: bytes, ipv6: bool, needs_csum: bool) -> None:
    for seq, ack in ((0, 0), (2**32 - 9, 6), (7, 2**31)):  # from the cache from the second one on
        made = make_segment(payload, seq=seq, ack=ack, flags="PA", ipv6=ipv6, window=seq % 999, needs_csum=needs_csum)
        network = IPv6(tc=0x28, fl=0xBEEF) if ipv6 else IP(tos=0x28, id=77, flags="DF")
        network.src, network.dst = IPV6_ADDRESSES if ipv6 else IPV4_ADDRESSES
        tcp = TCP(sport=40000, dport=5001, seq=seq, ack=ack, flags="PA", window=seq % 999, options=TIMESTAMPS)
        expected = bytes(Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01") / network / tcp / payload)
        header, frame = parse_vnet(made)
        at = header.csum_start + header.csum_offset
        if needs_csum:  # what a card leaves to be summed up is the pseudo header, not inverted: the sum fills it in
            assert frame[:at] + frame[at + 2 :] == expected[:at] + expected[at + 2 :]
            network = type(network)(frame[14:])
            assert network[TCP].chksum == pseudo_sum(expected, ipv6)
        else:
            assert frame == expected


def pseudo_sum(frame: bytes, ipv6: bool) -> int:
    """Return RFC 9293's sum over addresses, protocol and length of a frame's TCP."""
    addresses, tcp_len = (frame[22:54], len(frame) - 54) if ipv6 else (frame[26:34], len(frame) - 34)
    words = addresses + (6).to_bytes(2, "big") + tcp_len.to_bytes(2, "big")
    total = sum(int.from_bytes(words[at : at + 2], "big") for at in range(0, len(words), 2))
    return total % 0xFFFF
