"""``netoffload verify stream``: a stream between two nodes of a testbed, every value compared."""

import contextlib
import json
from typing import Annotated

import typer

from netoffload import config
from netoffload.cli.app import console, notes
from netoffload.cli.verify import CODEC_NAMES, MISMATCH, AsJson, Bound, shown_progress, verify_app
from netoffload.errors import UsageError
from netoffload.lab.units import parse_rate_bps

NicCodec = Annotated[str, typer.Option(help=f"Codec of the NICs: {CODEC_NAMES}.")]


@verify_app.command("stream")
def verify_stream(
    size: Annotated[str, typer.Option(help="Octets to send: 2GB, 20MB.")] = "200MB",
    fault: Annotated[
        str,
        typer.Option(help="loss=P,dup=P,reorder=P,flip=P,truncate=P,delay=5ms,seed=N, any of them.", metavar="FAULTS"),
    ] = "",
    codec: NicCodec = "inceptionn",
    bound: Bound = config.BOUND_K_DEFAULT,
    rate: Annotated[str | None, typer.Option(help="Rate of the wires. Default: unshaped.", metavar="RATE")] = None,
    host: Annotated[str, typer.Option(help="tap, or veth.")] = "tap",
    threads: Annotated[int, typer.Option(help="Threads of a NIC: 1 or 2.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Send a tagged stream from one emulated node to another and compare every value that arrives.

    Each value must be the codec's round trip of the value sent, bit for bit,
    whatever happens to frames on the wires. It may be the value sent itself
    only before the NIC has judged that the flow is float32. The command ends
    with exit code 1 otherwise.

    Example: netoffload verify stream --size 2GB --fault loss=0.01,flip=1e-4,seed=7
    """
    from netoffload.lab.testbed import NicSettings, Testbed, TestbedSettings, make_plan, new_run_id
    from netoffload.lab.testbed.stream import nic_counters, stream

    octets = config.parse_size_octets(size)
    if octets < 4:
        raise UsageError(f"--size {size} is less than one float32: give at least 4")
    nic = NicSettings(codec, bound, host=host, faults=fault, threads=threads)
    rate_bps = None if rate is None else parse_rate_bps(rate)
    with contextlib.ExitStack() as stack:
        with notes.status("building") as line:
            plan = make_plan(TestbedSettings(2, rate_bps, nic=nic), new_run_id())
            bed = stack.enter_context(Testbed(plan, check_rate=False, progress=line.update))
        show = stack.enter_context(shown_progress("octets", octets))
        found = stream(bed, octets, on_progress=show)
        counters = nic_counters(bed)
    if as_json:
        told = {"values": found.values, "raw": found.raw, "wrong": found.wrong, "elapsed_s": found.seconds}
        print(json.dumps({"fault": fault, **told, "goodput_bps": found.goodput_bps, "counters": counters}, indent=2))
    else:
        happened = {name: count for name, count in counters.items() if count and name.startswith(("fault", "drop"))}
        console.print(
            f"{found.values} values in {found.seconds:.1f} s ({config.format_rate(found.goodput_bps)}): "
            f"{found.wrong} wrong, {found.raw} as they were sent, the others as {codec} k={bound} makes them",
            soft_wrap=True,
        )
        for name, count in happened.items():
            console.print(f"  {count:>10} {name}", highlight=False)
    may_be_raw = any(counters[name] for name in ("bypass_undecided", "bypass_exact", "bypass_special"))
    if found.wrong or (found.raw and not may_be_raw):
        raise typer.Exit(MISMATCH)
