"""``netoffload verify``: compares codecs with their slow definitions, damages frames, checks a stream on wires."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from netoffload import config
from netoffload.cli.app import app, console, notes, progress_bar
from netoffload.cli.codec_options import Bound, Bounds, Codecs, NicCodec

MISMATCH: Final = 1
"""Exit code."""

verify_app = typer.Typer(no_args_is_help=True, help="Compare codecs with their definitions, and streams with codecs.")
app.add_typer(verify_app, name="verify")

Jobs = Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")]


@verify_app.callback()
def _verify() -> None:
    """Compare codecs with their definitions, and streams with codecs."""


@verify_app.command("codec")
def verify_codec(
    codec: Codecs = None,
    bound: Bounds = None,
    first: Annotated[int, typer.Option(help="First bit pattern, a multiple of 8.")] = 0,
    count: Annotated[
        str | None, typer.Option(help="Bit patterns: 4096, 200k, 20M; default: to the last.", show_default=False)
    ] = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Send every float32 bit pattern through the kernels in use and through the oracle, and compare the bits.

    It compares encoding, decoding, and both in one step, and the payloads'
    octets. If a codec keeps its bound, it compares the error with the bound.
    It ends with exit code 1 at a difference. Default codec and bound:
    inceptionn, 10.

    Example: netoffload verify codec --codec inceptionn --codec bounded --bound 10
    """
    from netoffload.codec import kernels, verify

    wanted = verify.ALL - first if count is None else config.parse_count(count)
    asked = list(dict.fromkeys(itertools.product(codec or ["inceptionn"], bound or [config.BOUND_K_DEFAULT])))
    for name, bound_k in asked:
        verify.check_asked(name, bound_k, first, wanted)
    results: list[dict[str, Any]] = []
    for name, bound_k in asked:
        started = time.perf_counter()
        with shown_progress(f"{name}, bound 2^-{bound_k}", wanted) as show:
            mismatch = verify.verify(name, bound_k, first=first, count=wanted, jobs=jobs, on_progress=show)
        elapsed_s = time.perf_counter() - started
        results.append(
            {
                "codec": name,
                "k": bound_k,
                "first": first,
                "count": wanted,
                "elapsed_s": elapsed_s,
                "mismatch": None if mismatch is None else vars(mismatch),
            }
        )
        verdict = f"all {wanted} bit patterns agree" if mismatch is None else str(mismatch)
        if not as_json:
            console.print(f"{name} k={bound_k} {kernels.KERNEL}: {verdict} ({elapsed_s:.1f} s)", soft_wrap=True)
    if as_json:
        print(json.dumps({"kernel": kernels.KERNEL, "results": results}, indent=2))
    if any(result["mismatch"] for result in results):
        raise typer.Exit(MISMATCH)


@verify_app.command("decoder")
def verify_decoder(
    count: Annotated[str, typer.Option(help="Payloads: a number, also as 200k or 10M.")] = "10M",
    seed: Annotated[int, typer.Option(min=0, help="Decides every payload.")] = 1,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Decode random and mutated payloads in memory that ends where the decoder must stop.

    One octet read or written too far is a crash. The decoder must refuse every
    payload that no encoder can have made, and accept every other one. It tries
    all codecs and the bounds 1 to 16.

    Example: netoffload verify decoder --count 100k
    """
    from netoffload.codec import fuzz, kernels

    wanted = config.parse_count(count)
    started = time.perf_counter()
    with shown_progress("payloads", wanted) as show:
        tally = fuzz.fuzz(wanted, seed, jobs=jobs, on_progress=show)
    elapsed_s = time.perf_counter() - started
    if as_json:
        print(json.dumps({"kernel": kernels.KERNEL, "seed": seed, **vars(tally), "elapsed_s": elapsed_s}, indent=2))
    else:
        console.print(
            f"{kernels.KERNEL}: {tally.accepted} payloads accepted, {tally.refused} refused, "
            f"no status wrong, no crash ({elapsed_s:.1f} s)",
            soft_wrap=True,
        )


@verify_app.command("frames")
def verify_frames(
    count: Annotated[str, typer.Option(help="Frames: a number, also as 200k or 20M.")] = "20M",
    seed: Annotated[int, typer.Option(min=0, help="Decides every frame.")] = 1,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Send random, damaged and good frames through the NIC's engine, both ways.

    The memory ends where the engine must stop, so one octet read or written
    too far is a crash. Every frame must cross, be compressed, be merged or
    be dropped, and exactly one counter must count it. The peer's engine must
    accept every block.

    Example: netoffload verify frames --count 200k
    """
    from netoffload.codec import kernels
    from netoffload.engine import fuzz

    wanted = config.parse_count(count)
    started = time.perf_counter()
    with shown_progress("frames", wanted) as show:
        tally = fuzz.fuzz(wanted, seed, jobs=jobs, on_progress=show)
    elapsed_s = time.perf_counter() - started
    if as_json:
        print(json.dumps({"kernel": kernels.KERNEL, "seed": seed, **vars(tally), "elapsed_s": elapsed_s}, indent=2))
        return
    for name, times in tally.outcomes.items():
        console.print(f"{times:>12}  {name}")
    console.print(
        f"{kernels.KERNEL}: {tally.frames} frames into either direction, each accounted for, no crash "
        f"({elapsed_s:.1f} s)",
        soft_wrap=True,
    )


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
    nic = NicSettings(codec, bound, host=host, faults=fault, threads=threads)
    rate_bps = None if rate is None else config.parse_rate_bps(rate)
    with contextlib.ExitStack() as stack:
        with notes.status("building") as line:
            plan = make_plan(TestbedSettings(2, rate_bps, nic=nic), new_run_id())
            bed = stack.enter_context(Testbed(plan, check_rate=False, progress=line.update))
        show = stack.enter_context(shown_progress("octets", octets))
        found = stream(bed, octets, on_progress=show)
        counters = nic_counters(bed)
    rate_out_bps = 32 * found.values / max(found.elapsed_s, 1e-9)
    if as_json:
        told = {"fault": fault, **asdict(found), "goodput_bps": rate_out_bps, "counters": counters}
        print(json.dumps(told, indent=2))
    else:
        happened = {name: count for name, count in counters.items() if count and name.startswith(("fault", "drop"))}
        console.print(
            f"{found.values} values in {found.elapsed_s:.1f} s ({config.format_rate(rate_out_bps)}): "
            f"{found.wrong} wrong, {found.raw} as they were sent, the others as {codec} k={bound} makes them",
            soft_wrap=True,
        )
        for name, count in happened.items():
            console.print(f"  {count:>10} {name}", highlight=False)
    may_be_raw = any(counters[name] for name in ("bypass_undecided", "bypass_exact", "bypass_special"))
    if found.wrong or (found.raw and not may_be_raw):
        raise typer.Exit(MISMATCH)


@contextmanager
def shown_progress(what: str, total: int | None) -> Iterator[Callable[..., None]]:
    """Show a bar on standard error while the context lasts.

    Args:
        what: name of the things that are counted.
        total: number of them; None: not known yet.

    Yields:
        a function to call with the number done and, if they have changed, the total and the name.
    """
    with progress_bar() as say:
        say(f"checking {what}")
        known, doing = total, what

        def show(done: int, total: int | None = None, what: str | None = None) -> None:
            nonlocal known, doing
            known, doing = total or known, what or doing
            say(doing, done / known if known else 0.0)

        yield show
