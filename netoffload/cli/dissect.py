"""``netoffload dissect``: shows the blocks in a capture file, and says where the Wireshark dissector is."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from netoffload.cli.app import app, notes
from netoffload.errors import UsageError

if TYPE_CHECKING:
    from netoffload.dissect.capture import FlowSum, Frame

VALUES_PER_LINE = 8
"""A burst."""


@app.command()
def dissect(
    file: Annotated[
        Path | None, typer.Argument(help="A pcap or pcapng capture; -: standard input.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Stop after LIMIT frames.", show_default="all of them")
    ] = None,
    values: Annotated[bool, typer.Option("--values", help="Decode the blocks' floats.")] = False,
    lua: Annotated[bool, typer.Option("--lua", help="Say where the Wireshark dissector is and how to use it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: frames and flows.")] = False,
) -> None:
    """Read captured frames: say what each frame is, what its block holds and whether it is whole; add up flows.

    Example: tcpdump -i wire0 -w blocks.pcap; netoffload dissect blocks.pcap --limit 20

    Example: netoffload dissect blocks.pcap --values --json
    """
    if lua:
        _print_lua(as_json)
        return
    if file is None:
        raise UsageError("name a capture file, or say --lua")
    logging.getLogger("scapy").setLevel(logging.ERROR)  # its remarks on odd frames are not for standard error
    from netoffload.dissect.capture import add_to_flows, read_frames

    flows: dict[Any, FlowSum] = {}
    file = Path("/dev/stdin") if str(file) == "-" else file
    with _progress(itertools.islice(read_frames(file, values), limit)) as frames:
        if as_json:
            _print_json(frames, flows)
            return
        for frame in frames:
            add_to_flows(flows, frame)
            print(_line(frame))
            if frame.values is not None:
                for first in range(0, frame.values.size, VALUES_PER_LINE):
                    print("        " + " ".join(f"{x:13.6g}" for x in frame.values[first : first + VALUES_PER_LINE]))
    _print_flows(list(flows.values()))


def _print_lua(as_json: bool) -> None:
    from netoffload.dissect import lua_path

    path = lua_path()
    if as_json:
        print(json.dumps({"lua": str(path)}))
        return
    print(path)
    print(f"for once:  tshark -X lua_script:{path} -r FILE")
    print("to stay:   copy it into the folder that Wireshark calls Personal Lua Plugins (Help > About > Folders)")


@contextlib.contextmanager
def _progress(frames: Iterator[Frame]) -> Iterator[Iterator[Frame]]:
    """Count frames on standard error if standard output shows no lines meanwhile."""
    if sys.stdout.isatty():
        yield frames
        return
    with notes.status("reading") as line:

        def counted() -> Iterator[Frame]:
            for frame in frames:
                if frame.number % 1000 == 0:
                    line.update(f"{frame.number:,} frames")
                yield frame

        yield counted()


def _print_json(frames: Iterator[Frame], flows: dict[Any, FlowSum]) -> None:
    """Print the frames as they are read: a capture need not fit into memory."""
    from netoffload.dissect.capture import add_to_flows

    first = next(frames, None)  # a file that is no capture is an error before anything is printed
    print('{"frames": [')
    for frame in itertools.chain([first] if first is not None else [], frames):
        add_to_flows(flows, frame)
        print(("" if frame is first else ",") + json.dumps(frame.to_json()))
    print(f'], "flows": {json.dumps([flow.to_json() for flow in flows.values()])}}}')


def _line(frame: Frame) -> str:
    from netoffload.engine.summary import endpoint

    start = f"{frame.number:6} {frame.time_s:11.6f}  "
    if frame.src is None or frame.dst is None:
        return f"{start}{frame.text}" + (f"  {frame.fault}" if frame.fault else "")
    if frame.sport is None or frame.dport is None:
        return f"{start}{frame.src} -> {frame.dst}  {frame.kind} without its TCP header"
    flow = f"{endpoint(frame.src, frame.sport)} -> {endpoint(frame.dst, frame.dport)}"
    start += f"{flow}  seq {frame.seq} {frame.flags}  "
    if frame.kind == "offer":
        only = ", only with a MAC" if frame.peer_wants_mac else ""
        return f"{start}NIC decodes {', '.join(frame.peer_codecs or ())} (version {frame.peer_version}){only}"
    if frame.kind != "block":
        return f"{start}{frame.kind} TCP, {frame.payload_len} octets"
    crc = "crc not checked (cut short)" if frame.crc is None else f"crc {frame.crc}"
    crc += ", MAC" if frame.has_mac else ""
    said = f"{start}{frame.raw_len} -> {'?' if frame.payload_len is None else frame.payload_len}"
    said += f"  {frame.ratio:.2f}" if frame.ratio is not None else ""
    said += f"  {frame.codec} k={frame.bound_k}"
    said += "  " + "/".join(map(str, frame.classes)) + " of 0/8/16/32 bit" if frame.classes is not None else ""
    return f"{said}  {crc}" + (f"  {frame.fault}" if frame.fault else "")


def _print_flows(flows: list[FlowSum]) -> None:
    from netoffload.engine.summary import endpoint

    for flow in flows:
        said = f"{endpoint(flow.src, flow.sport)} -> {endpoint(flow.dst, flow.dport)}: "
        if flow.blocks:
            said += f"{flow.blocks:,} blocks, {flow.raw_octets:,} octets as {flow.payload_octets:,}"
            said += f", ratio {flow.ratio:.2f}" if flow.ratio is not None else ""
            if total := sum(flow.classes):
                shares = (f"{bits} bit {n / total:.1%}" for bits, n in zip((0, 8, 16, 32), flow.classes, strict=True))
                said += f" ({', '.join(shares)})"
            said += "; "
        said += f"raw {flow.segment_octets:,} octets in {flow.segments:,} frames"
        print(said + (f"; {flow.bad_blocks:,} bad blocks" if flow.bad_blocks else ""))
