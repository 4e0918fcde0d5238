"""A port of the loop between Unix sockets, which replace the devices."""

import os
import socket

from netoffload.engine.flows import make_flows
from netoffload.engine.state import EngineSettings
from netoffload.nic_options.faults import FaultSettings
from netoffload_daemon.loop import serve
from netoffload_daemon.port import RX, TX, Port, make_port, make_settings


class Bench:
    """A port whose host and wire have ends of ours; with ``is_stopped`` the stop has been given already."""

    def __init__(self, engine: EngineSettings, faults: FaultSettings, *, is_stopped: bool) -> None:
        self.settings = make_settings(faults)
        self.host, self.hosts_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.wire, self.far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for end in (self.host, self.wire):
            end.setblocking(False)
        devices = self.host.fileno(), self.wire.fileno()
        self.port: Port = make_port(engine, make_flows(), faults, devices=devices)
        self.event = os.eventfd(is_stopped)

    def serve(self) -> int:
        return int(serve(self.event, TX | RX, self.settings, self.port))

    def close(self) -> None:
        for end in (self.host, self.hosts_end, self.wire, self.far_end):
            end.close()
        os.close(self.event)
