import dataclasses
import json
import resource
from pathlib import Path
from typing import Any

import pytest

from netoffload.errors import UsageError
from netoffload.lab import reports, results
from tests.lab.records import a_run
from tests.shared.commands import netoffload


def a_record() -> results.Record:
    run, samples = a_run("inc+c", 0.03, loss_scale=4.0), results.Spread.of([0.03, 0.02, 0.04])
    nodes = (results.NodeTraffic("n0", 1000, 10), results.NodeTraffic("n1", 500, 6))
    return dataclasses.replace(
        run,
        rate_bps_measured=None,
        timing=results.Timing(samples, samples, samples, samples, samples, samples, samples, None),
        traffic=results.Traffic(nodes, 600, 100, 7, results.ClassCounts(1, 2, 3, 4), 0.5, {"drop_checksum": 2}),
        compression_efficiency=0.2,
        learning=results.Learning(0.5, {"5": 0.25}, None),
        peak_memory_octets=(500, 700),
    )


def test_a_file_of_records_reads_back_as_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    first = a_record()
    second = dataclasses.replace(first, rate_bps_measured=9.5e8, started="2026-01-02T00:00:00+00:00")
    results.append_records(path, [first])
    results.append_records(path, [second])
    assert results.read_records(path) == [first, second]


def test_a_file_that_cannot_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    results.check_writable(tmp_path / "new.jsonl")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old.jsonl").write_text("as it was")
    results.check_writable(tmp_path / "old.jsonl")
    assert (tmp_path / "old.jsonl").read_text() == "as it was"
    with pytest.raises(UsageError, match="none is not a folder"):
        results.check_writable(tmp_path / "none" / "new.jsonl")
    with pytest.raises(UsageError, match="Is a directory"):
        results.check_writable(tmp_path)


def test_derived_numbers() -> None:
    traffic = a_record().traffic
    assert (traffic.wire_octets, traffic.wire_frames, traffic.ratio, traffic.classes.total) == (1500, 16, 6.0, 10)
    assert dataclasses.replace(traffic, raw_octets=0, payload_octets=0).ratio == 1.0


def test_spread_of_samples() -> None:
    assert results.Spread.of([4.0, 1.0, 2.0, 3.0, 5.0]) == results.Spread(3.0, 2.0, 4.0, 1.0, 5.0)
    assert results.Spread.of([1.0, 2.0]) == results.Spread(1.5, 1.25, 1.75, 1.0, 2.0)
    assert results.Spread.of([7.0]) == results.Spread(7.0, 7.0, 7.0, 7.0, 7.0)


def changed(path: tuple[str, ...], value: Any) -> str:
    whole = json.loads(results.to_line(a_record()))
    place = whole
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[]", "not a record of format"),
        (changed(("format",), 1), "not a record of format"),
        (changed(("surprise",), 1), "unknown keys: surprise"),
        (changed(("traffic", "classes", "bits_4"), 1), "record.traffic.classes has unknown keys: bits_4"),
        (changed(("configuration",), {}), "record.configuration lacks keys"),
        (changed(("configuration", "nodes"), "4"), "record.configuration.nodes is '4', not int"),
        (changed(("configuration", "nodes"), True), "record.configuration.nodes is True, not int"),
        (changed(("traffic", "nodes"), [{"name": "n0"}]), r"record.traffic.nodes\[0\] lacks keys"),
        (changed(("timing", "wall_s", "median"), None), "record.timing.wall_s.median is None, not float"),
        (changed(("traffic", "drops"), {"drop_x": 1.5}), "record.traffic.drops.drop_x is 1.5, not int"),
        (changed(("timing", "wall_s", "median"), 0), "no record of a run: it has [0-9]+ timed iterations of 0.0 s"),
        (changed(("timed_iterations",), 0), "no record of a run: it has 0 timed iterations"),
        (changed(("traffic", "nodes"), []), "no record of a run: it has no nodes or no ranks"),
        (changed(("peak_memory_octets",), []), "no record of a run: it has no nodes or no ranks"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_the_place(line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        results.from_line(line)


def of_format(written: int, *, early: bool = False) -> dict[str, Any]:
    """A record as a version of that format wrote it; ``early``: before a key came that did not raise the number."""
    old: dict[str, Any] = json.loads(results.to_line(a_record())) | {"format": written}
    if written < 8:
        del old["traffic"]["crossed_raw_octets"]
    if written < 6:
        del old["learning"]["loss_after"]
    if written < 5:
        for key in ("optimizer", "schedule", "clip_norm", "parallel", "activations", "sub_batches"):
            del old["configuration"][key]
        del old["first_iteration"], old["timed_iterations"]
        del old["configuration"]["bucket_mb"], old["peak_memory_octets"]
        for name in ("forward_s", "backward_s", "update_s", "sum_s", "hidden_s"):
            del old["timing"][name]
    if written < 4:
        del old["configuration"]["offload"]
    if written < 3:
        del old["versions"]["machine"]
        if early and written == 2:
            del old["configuration"]["sharing"]
    if written < 2:
        del old["configuration"]["sharing"], old["configuration"]["error_feedback"], old["compression_efficiency"]
        if early:
            del old["versions"]["codec_kernel"]
    return old


@pytest.mark.parametrize(
    ("written", "early"), [(1, True), (2, True), *((written, False) for written in range(1, results.FORMAT + 1))]
)
def test_a_record_of_an_older_format_is_read_and_reported(written: int, early: bool, tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text(json.dumps(of_format(written, early=early)) + "\n")
    [record] = results.read_records(path)
    whole = a_record()
    if written < 5:
        timing = dataclasses.replace(
            whole.timing, forward_s=None, backward_s=None, update_s=None, sum_s=None, hidden_s=None
        )
        whole = dataclasses.replace(whole, timing=timing, peak_memory_octets=None)
    if written < 3:
        codec_kernel = "unknown" if early and written == 1 else whole.versions.codec_kernel
        versions = dataclasses.replace(whole.versions, machine="unknown", codec_kernel=codec_kernel)
        whole = dataclasses.replace(whole, versions=versions)
    if written == 1:  # its ring's vectors went through NICs whole, so the efficiency is the ratio's inverse
        whole = dataclasses.replace(whole, compression_efficiency=1 / 6)
    assert record == whole
    assert results.from_line(results.to_line(record)) == record
    summary = reports.summarise([record])
    assert summary.bars["inc+c"].compression_efficiency == whole.compression_efficiency
    assert summary.to_json()["machine"].startswith(whole.versions.machine)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (of_format(results.FORMAT + 1), "has format 9; this version reads 1 to 8: update netoffload"),
        (of_format(3) | {"format": "3"}, "not a record of format 1 to 8"),
        ({"format": 1}, "not a record of format 1: it has no '"),
        (of_format(3) | {"format": 2}, "not a record of format 2: .*machine of a later format"),
        (
            {key: value for key, value in of_format(2).items() if key != "parameter_sha256"},
            "lacks keys: parameter_sha256",
        ),
    ],
)
def test_what_no_version_wrote_is_refused(line: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        results.from_line(json.dumps(line))


def test_a_file_without_records_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    with pytest.raises(UsageError, match="has no record"):
        results.read_records(empty)
    with pytest.raises(UsageError, match="cannot read records"):
        results.read_records(tmp_path / "missing.jsonl")


@pytest.mark.parametrize("cut", [1, 30])
def test_a_record_is_kept_behind_a_line_that_was_not_finished(
    cut: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, first, second = tmp_path / "runs.jsonl", a_record(), a_record()
    results.append_records(path, [first])
    path.write_bytes(path.read_bytes()[:-cut])
    assert cut > 1 or results.read_records(path) == [first]
    results.append_records(path, [second])
    assert results.read_records(path) == ([first, second] if cut == 1 else [second])
    assert capsys.readouterr().err == ""
    path.write_bytes(path.read_bytes() + b'{"format":')
    assert results.read_records(path)[-1:] == [second]
    assert capsys.readouterr().err == f"netoffload: warning: {path}: its last record was cut, and is left out\n"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot read records from"):
        results.read_records(path)


def test_the_line_of_a_bad_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(results.to_line(a_record()) + "\n{\n")
    with pytest.raises(UsageError, match=r"runs\.jsonl:2 is not JSON"):
        results.read_records(path)


def test_a_full_disk_is_refused_in_one_line_before_anything_is_built(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (results.ROOM_OCTETS // 2, limits[1]))
    try:
        done = netoffload("demo", "--out", str(tmp_path / "demo"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.returncode == 2
    assert done.stderr == f"netoffload: cannot write {tmp_path}/demo/records.jsonl: File too large\n"
    assert not list(tmp_path.iterdir())
