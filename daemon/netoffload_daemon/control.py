"""The commands of the NIC's control socket.

========= ================================================================
info      pid, version, devices, codec, bound, packing, encapsulation, tag, ports, kernel, bypass; the wire's MTU
counters  every counter by name
flows     one entry per flow and direction that carried tagged segments
metrics   info, counters and numbers of flows in Prometheus' text format
stop      empty both directions and exit with 0
========= ================================================================
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import netoffload
from netoffload.codec.kernels import KERNEL
from netoffload.compiled.arrays import Int64Array
from netoffload.config import format_ports, format_tag
from netoffload.control import Handler
from netoffload.engine import counters, flow_report
from netoffload.nic_options import NicProcess
from netoffload_daemon.metrics import exposition
from netoffload_daemon.port import Port
from netoffload_daemon.trace import with_traced

SETTINGS: Final = ("host", "wire", "codec", "bound_k", "packing", "encapsulation")
"""What ``info`` says as it was given."""


def make_handlers(
    settings: NicProcess, port: Port, event: int, read_kernel: Callable[[Int64Array], None] | None = None
) -> dict[str, Handler]:
    """Return the functions that answer, by command name; ``read_kernel`` sets what filters in the kernel count."""

    def info(_: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "version": netoffload.__version__,
            **{name: getattr(settings, name) for name in SETTINGS},
            "tag": format_tag(settings.tag_tos),
            "ports": format_ports(settings.port_ranges),
            "kernel": KERNEL,
            "bypass": settings.bypass,
            "mtu": int(port.nic.settings.mtu[0]),
        }

    def read_counters(_: Mapping[str, Any]) -> dict[str, Any]:
        if read_kernel is not None:
            read_kernel(port.nic.counters)
        return {"counters": counters.as_dict(with_traced(port.nic.counters, (port.tx_trace, port.rx_trace)))}

    def read_flows(_: Mapping[str, Any]) -> dict[str, Any]:
        return {"flows": flow_report.as_dicts(port.nic.flows, port.nic.settings.codec_id)}

    def metrics(_: Mapping[str, Any]) -> dict[str, Any]:
        directions = [row["direction"] for row in read_flows({})["flows"]]
        known = {name: directions.count(name) for name in ("tx", "rx")}
        return {"metrics": exposition(info({}), read_counters({})["counters"], known)}

    def stop(_: Mapping[str, Any]) -> dict[str, Any]:
        os.eventfd_write(event, 1)
        return {}

    return {"info": info, "counters": read_counters, "flows": read_flows, "metrics": metrics, "stop": stop}
