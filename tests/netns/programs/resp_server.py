"""A server that speaks a little of Redis' protocol (RESP 2): ``resp_server.py ADDRESS PORT``.

It knows SET and GET, and answers a broken request as Redis does: with a protocol error, then the end.
"""

import socket
import sys
import threading
from typing import BinaryIO


def read_request(stream: BinaryIO) -> list[bytes]:
    """Return the words of a request; empty at the end of the connection."""
    head = stream.readline()
    if not head:
        return []
    if head[:1] != b"*":
        raise ValueError("unknown command")
    words = []
    for _ in range(int(head[1:])):
        length = stream.readline()
        if length[:1] != b"$":
            raise ValueError(f"expected '$', got {length[:1]!r}")
        words.append(stream.read(int(length[1:])))
        if stream.read(2) != b"\r\n":
            raise ValueError("no end of line behind a word")
    return words


def serve(connection: socket.socket, values: dict[bytes, bytes]) -> None:
    """Answer every request of a connection."""
    with connection, connection.makefile("rb") as stream:
        try:
            while words := read_request(stream):
                if words[0].upper() == b"SET":
                    values[words[1]] = words[2]
                    connection.sendall(b"+OK\r\n")
                else:
                    value = values.get(words[1])
                    connection.sendall(b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value))
        except ValueError as error:
            connection.sendall(f"-ERR Protocol error: {error}\r\n".encode())


with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    shared: dict[bytes, bytes] = {}
    while True:
        threading.Thread(target=serve, args=(server.accept()[0], shared), daemon=True).start()
