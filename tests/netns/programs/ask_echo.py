"""Send random octets and compare what comes back: ``ask_echo.py ADDRESS OCTETS``."""

import os
import socket
import sys
import threading

sent, got = os.urandom(int(sys.argv[2])), b""
with socket.create_connection((sys.argv[1], 5001), timeout=20) as stream:
    thread = threading.Thread(target=stream.sendall, args=(sent,))
    thread.start()
    while len(got) < len(sent) and (octets := stream.recv(65536)):
        got += octets
    thread.join()
    stream.shutdown(socket.SHUT_WR)
    got += stream.recv(1)
print("same" if got == sent else f"{len(got)} octets came back")
