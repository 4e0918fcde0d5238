"""Print the numbers of the answers to ICMP echo requests: ``ping.py ADDRESS COUNT``."""

import os
import select
import socket
import struct
import sys
import time

from netoffload.wire.checksum import internet_checksum

address, count = sys.argv[1], int(sys.argv[2])
is_ipv4 = ":" not in address
family, protocol, request, reply = (
    (socket.AF_INET, socket.IPPROTO_ICMP, 8, 0) if is_ipv4 else (socket.AF_INET6, socket.IPPROTO_ICMPV6, 128, 129)
)
ident = os.getpid() & 0xFFFF
answered: list[int] = []
with socket.socket(family, socket.SOCK_RAW, protocol) as icmp:
    for number in range(count):
        words = struct.pack("!HH", ident, number)
        summed = internet_checksum(bytes((request, 0, 0, 0)) + words) if is_ipv4 else 0  # else the kernel does it
        icmp.sendto(struct.pack("!BBH", request, 0, summed) + words, (address, 0))
    end_s = time.monotonic() + 10
    while select.select([icmp], [], [], max(0, end_s - time.monotonic()))[0]:
        kind, _, _, its_ident, number = struct.unpack_from("!BBHHH", icmp.recv(1500), 20 if is_ipv4 else 0)
        if (kind, its_ident) == (reply, ident):
            answered.append(number)
            if len(answered) == count:
                end_s = time.monotonic() + 0.2  # for what comes twice
print(*sorted(answered))
