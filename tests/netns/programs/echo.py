"""Send back whatever one TCP connection brings: ``echo.py ADDRESS``."""

import socket
import sys

with socket.create_server((sys.argv[1], 5001)) as server:
    server.settimeout(20)
    print("listening", flush=True)
    stream = server.accept()[0]
    with stream:
        while octets := stream.recv(65536):
            stream.sendall(octets)
