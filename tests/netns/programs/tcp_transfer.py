"""Carry octets over TCP: ``tcp_transfer.py receive|send ADDRESS PORT TOS:OCTETS...``, from stdin to stdout.

The sender takes the writes over and over. Both ends begin with the first one's ToS, which their SYNs carry.
"""

import itertools
import socket
import sys

BYTES_RETRANS_AT = 208
"""In ``struct tcp_info`` (linux/tcp.h): octets that TCP has sent again, 64 bits."""

way, address, port, *words = sys.argv[1:]
writes = [(int(tos, 16), int(size)) for tos, size in (word.split(":") for word in words)]
is_ipv6 = ":" in address
level, option = (socket.IPPROTO_IPV6, socket.IPV6_TCLASS) if is_ipv6 else (socket.IPPROTO_IP, socket.IP_TOS)


def receive(listener: socket.socket) -> bytes:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, int(port)))
    listener.listen()
    print("listening", file=sys.stderr, flush=True)
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as stream:
        return stream.read()


def send(sock: socket.socket, octets: memoryview) -> int:
    """Send everything, wait until the other end has it, and return how many octets TCP has sent again."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.connect((address, int(port)))
    turns = itertools.cycle(writes)
    while octets:
        tos, size = next(turns)
        sock.setsockopt(level, option, tos)
        sock.sendall(octets[:size])
        octets = octets[size:]
    sock.shutdown(socket.SHUT_WR)
    sock.recv(1)
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RETRANS_AT + 8)
    return int.from_bytes(info[BYTES_RETRANS_AT:], "little")


with socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET) as sock:
    sock.setsockopt(level, option, writes[0][0])
    if way == "receive":
        sys.stdout.buffer.write(receive(sock))
    else:
        print(send(sock, memoryview(sys.stdin.buffer.read())))
