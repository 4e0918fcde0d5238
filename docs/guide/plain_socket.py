"""Send float32 over a plain socket with ToS 0x28, which NICs compress. It imports nothing of netoffload.

netoffload exec n1 -- python docs/guide/plain_socket.py receive out.bin
netoffload exec n0 -- python docs/guide/plain_socket.py send 10.98.1.2 in.bin
"""

import argparse
import socket
import sys

PORT = 5028
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ways = parser.add_subparsers(dest="way", required=True)
receiver = ways.add_parser("receive", help="wait for one sender, and keep what it sends")
receiver.add_argument("file", help="file to write")
sender = ways.add_parser("send", help="send a file of float32")
sender.add_argument("address", help="address of the node that receives")
sender.add_argument("file", help="file to send")
asked = parser.parse_args()

sock = socket.socket()
sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x28)  # before connect() and listen(): the SYN carries it too
try:
    if asked.way == "send":
        with open(asked.file, "rb") as values:
            sock.connect((asked.address, PORT))
            sock.sendfile(values)
    else:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", PORT))
        sock.listen()
        connection, _ = sock.accept()
        with open(asked.file, "wb") as values, connection:
            while octets := connection.recv(1 << 20):
                values.write(octets)
except socket.gaierror as error:
    sys.exit(f"plain_socket.py: {asked.address!r}: {error.strerror}")
except OSError as error:
    hint = "start the receiver there first" if asked.way == "send" else "end what uses it first"
    sys.exit(f"{asked.file}: {error.strerror}" if error.filename else f"port {PORT}: {error.strerror}: {hint}")
sock.close()
