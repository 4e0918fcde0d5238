"""Send a datagram to a port that nobody listens at, and end well when ICMP says so: ``be_refused.py ADDRESS``."""

import socket
import sys

with socket.socket(type=socket.SOCK_DGRAM) as sock:
    sock.settimeout(10)
    sock.connect((sys.argv[1], 9))
    sock.send(b"octets")
    try:
        sock.recv(1)
    except ConnectionRefusedError:
        sys.exit(0)
sys.exit("nobody refused it")
