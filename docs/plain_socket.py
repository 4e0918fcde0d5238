"""An unmodified program profits: a plain socket that sends float32 with ToS 0x28. Two nodes, no library of ours.

netoffload exec n1 -- python docs/plain_socket.py receive out.bin
netoffload exec n0 -- python docs/plain_socket.py send 10.98.1.2 in.bin
"""

import socket
import sys

PORT = 5028
sock = socket.socket()
sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x28)  # before connect() and listen(): the SYN carries it too
if sys.argv[1] == "send":
    sock.connect((sys.argv[2], PORT))
    with open(sys.argv[3], "rb") as values:
        sock.sendfile(values)
else:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("", PORT))
    sock.listen()
    connection, _ = sock.accept()
    with open(sys.argv[2], "wb") as values, connection:
        while octets := connection.recv(1 << 20):
            values.write(octets)
sock.close()
