"""Which frames the kernel may carry past the NIC's process, because the engine never changes them: a BPF program.

One program in classic BPF (Linux ``Documentation/networking/filter.rst``) serves two places. A tc filter redirects the
frames that the program accepts. The NIC's packet socket, which hears a frame before tc does, drops exactly these
frames. The two copies differ only in the two numbers they return (:func:`redirect_program`, :func:`socket_program`), so
each frame takes exactly one of the two ways.

The kernel may carry, in either direction::

    ARP
    ICMP, ICMPv6    unless errors, which a NIC translates (``router_errors``)
    TCP   unless tagged, or with SYN, FIN or RST: a SYN carries what a NIC decodes, and all three end a flow
    UDP   unless tagged, or from or to the NIC's port

over IPv4 without options and fragments and over IPv6 without extension headers, without a VLAN tag. All other frames
come to the NIC: above all tagged ones, whatever their ports are, and IP protocol 108. The NIC needs the
acknowledgements of a tagged connection. They are tagged like its data, unless a socket changes its ToS or a path clears
it. Then the NIC misses acknowledgements and takes blocks for lost; and a float sent rounded may be sent again exact.

``tests/engine/test_engine_bypass.py`` has the slow definition of the program, and compares the two.
"""

import struct
from typing import Final

from netoffload.config import TOS_MASK
from netoffload.wire import ethernet, icmp, ipv4, ipv6, tcp
from netoffload.wire.encapsulation import UDP_PORT
from netoffload.wire.icmp import PROTO_ICMP, PROTO_ICMPV6
from netoffload.wire.udp import PROTO_UDP

ALL: Final = 0xFFFF_FFFF
"""For tc: a match, with the class that the filter names; for a socket: keep the whole frame."""
NONE: Final = 0

ETHERTYPE_ARP: Final = 0x0806
PORTS_LEN: Final = 4
ICMP_ERRORS: Final = (icmp.UNREACHABLE, icmp.TIME_EXCEEDED, icmp.PARAMETER_PROBLEM)

FLOW_ENDS: Final = tcp.SYN | tcp.FIN | tcp.RST
_V4_AT: Final = ethernet.ETHERNET_LEN
_AFTER_V4: Final = _V4_AT + ipv4.IPV4_MIN_LEN
_AFTER_V6: Final = _V4_AT + ipv6.IPV6_LEN

# linux/bpf_common.h, linux/filter.h
_LD_B_ABS: Final = 0x30
_LD_H_ABS: Final = 0x28
_LD_W_ABS: Final = 0x20
_LD_LEN: Final = 0x80
_LD_B_IND: Final = 0x50
_LD_H_IND: Final = 0x48
_LDX_IMM: Final = 0x01
_AND: Final = 0x54
_SUB_X: Final = 0x1C
_JEQ: Final = 0x15
_JGE: Final = 0x35
_JSET: Final = 0x45
_RET: Final = 0x06
_VLAN_TAG_PRESENT: Final = 0xFFFF_F000 + 48
"""The address from which a load reads whether the kernel took a VLAN tag out of the frame."""

_Line = tuple[int, int, str, str] | str
"""Operation, operand, and the labels to go to if it is true or false (empty: the next line); or a label by itself."""


def _lines(tag: int) -> tuple[_Line, ...]:
    """Return the program for a tag, up to its two results."""
    return (
        (_LD_W_ABS, _VLAN_TAG_PRESENT, "", ""),
        (_JEQ, 0, "", "stays"),
        # A load behind the frame's end ends the program with 0: the socket drops the frame, but tc does not carry it.
        # So the program checks lengths first.
        (_LD_LEN, 0, "", ""),
        (_JGE, ethernet.ETHERNET_LEN, "", "stays"),
        (_LD_H_ABS, ethernet.ETHERTYPE, "", ""),
        (_JEQ, ETHERTYPE_ARP, "passes", ""),
        (_JEQ, ethernet.ETHERTYPE_IPV4, "ipv4", ""),
        (_JEQ, ethernet.ETHERTYPE_IPV6, "", "stays"),
        # IPv6
        (_LD_LEN, 0, "", ""),
        (_JGE, _AFTER_V6, "", "stays"),
        (_LD_H_ABS, _V4_AT, "", ""),
        (_AND, 0xF000 | TOS_MASK << 4, "", ""),
        (_JEQ, 0x6000 | tag << 4, "stays", ""),
        (_AND, 0xF000, "", ""),
        (_JEQ, 0x6000, "", "stays"),
        (_LDX_IMM, _AFTER_V6, "", ""),
        (_LD_B_ABS, _V4_AT + ipv6.NEXT_HEADER, "", ""),
        (_JEQ, PROTO_ICMPV6, "icmp6", "transport"),
        "ipv4",
        (_LD_LEN, 0, "", ""),
        (_JGE, _AFTER_V4, "", "stays"),
        (_LD_B_ABS, _V4_AT, "", ""),
        (_JEQ, 0x45, "", "stays"),
        (_LD_B_ABS, _V4_AT + ipv4.TOS, "", ""),
        (_AND, TOS_MASK, "", ""),
        (_JEQ, tag, "stays", ""),
        (_LD_H_ABS, _V4_AT + ipv4.FRAGMENT, "", ""),
        (_JSET, ipv4.FRAGMENT_MASK, "stays", ""),
        (_LDX_IMM, _AFTER_V4, "", ""),
        (_LD_B_ABS, _V4_AT + ipv4.PROTOCOL, "", ""),
        (_JEQ, PROTO_ICMP, "icmp", ""),
        "transport",
        (_JEQ, tcp.PROTO_TCP, "tcp", ""),
        (_JEQ, PROTO_UDP, "", "stays"),
        # UDP
        (_LD_LEN, 0, "", ""),
        (_SUB_X, 0, "", ""),
        (_JGE, PORTS_LEN, "", "stays"),
        (_LD_H_IND, 0, "", ""),
        (_JEQ, UDP_PORT, "stays", ""),
        (_LD_H_IND, 2, "", ""),
        (_JEQ, UDP_PORT, "stays", "passes"),
        "icmp",
        (_LD_LEN, 0, "", ""),
        (_SUB_X, 0, "", ""),
        (_JGE, 1, "", "stays"),
        (_LD_B_IND, icmp.TYPE, "", ""),
        *((_JEQ, error, "stays", "") for error in ICMP_ERRORS[:-1]),
        (_JEQ, ICMP_ERRORS[-1], "stays", "passes"),
        "icmp6",
        (_LD_LEN, 0, "", ""),
        (_SUB_X, 0, "", ""),
        (_JGE, 1, "", "stays"),
        (_LD_B_IND, icmp.TYPE, "", ""),
        (_JGE, icmp.V6_ERROR_MAX + 1, "passes", "stays"),
        "tcp",
        (_LD_LEN, 0, "", ""),
        (_SUB_X, 0, "", ""),
        (_JGE, tcp.TCP_MIN_LEN, "", "stays"),
        (_LD_B_IND, tcp.FLAGS, "", ""),
        (_JSET, FLOW_ENDS, "stays", "passes"),
    )


def redirect_program(tag: int) -> bytes:
    """Return the program of a tc filter that takes the frames which the kernel carries (``struct sock_filter[]``).

    The NIC keeps frames with ``tag`` as ToS or traffic class.
    """
    return _assemble(_lines(tag), passes=ALL, stays=NONE)


def socket_program(tag: int) -> bytes:
    """Return the program of a packet socket that hears only the other frames (``struct sock_filter[]``)."""
    return _assemble(_lines(tag), passes=NONE, stays=ALL)


def _assemble(lines: tuple[_Line, ...], passes: int, stays: int) -> bytes:
    """Turn labels into distances, and append the two results."""
    places: dict[str, int] = {}
    count = 0
    for line in lines:
        if isinstance(line, str):
            places[line] = count
        else:
            count += 1
    places |= {"passes": count, "stays": count + 1}
    octets = b""
    for at, (operation, operand, if_true, if_false) in enumerate(one for one in lines if not isinstance(one, str)):
        true_at, false_at = (places[label] - at - 1 if label else 0 for label in (if_true, if_false))
        octets += _instruction(operation, true_at, false_at, operand)
    return octets + _instruction(_RET, 0, 0, passes) + _instruction(_RET, 0, 0, stays)


def _instruction(operation: int, if_true: int, if_false: int, operand: int) -> bytes:
    return struct.pack("=HBBI", operation, if_true, if_false, operand)
