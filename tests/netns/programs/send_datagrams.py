"""Somebody without rights sends to the NICs' port: ``send_datagrams.py ADDRESS SOURCE_PORT``.

Each line of stdin, a size and octets in hexadecimal, becomes a datagram, or a bundle of datagrams of that size.
"""

import os
import socket
import sys

from netoffload.wire.encapsulation import UDP_PORT

os.setgid(65534)
os.setuid(65534)
with socket.socket(type=socket.SOCK_DGRAM) as sock:
    sock.bind(("", int(sys.argv[2])))
    for line in sys.stdin:
        size, octets = line.split()
        sock.setsockopt(socket.SOL_UDP, 103, int(size))  # UDP_SEGMENT, linux/udp.h
        try:
            sock.sendto(bytes.fromhex(octets), (sys.argv[1], UDP_PORT))
        except OSError as error:
            print(error, file=sys.stderr)
