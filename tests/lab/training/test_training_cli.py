"""The training commands without root: exit codes and one clear line."""

import dataclasses
import json
from pathlib import Path

import pytest

from netoffload.lab import results
from netoffload.lab.cli.training_runs import progress, remarks_on
from netoffload.lab.results import ClassCounts, Learning, Record
from netoffload.lab.training.models import MODELS
from netoffload.lab.training.outcome import Step
from tests.lab.records import a_run
from tests.shared.commands import netoffload, refusal, started


@pytest.mark.slow
def test_a_wrong_option_of_a_process_is_one_line_and_exit_code_2() -> None:
    done = started("train", "hdd")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"netoffload: model 'hdd' is unknown: choose from {', '.join(MODELS)}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--exchange", "star"), "exchange 'star' is unknown: choose from wa, wa+c, inc, inc+c, fullsgd, psgd"),
        (("--exchange", "inc:p=3"), "inc takes groups=NUMBER and top=ring or top=wa, not p=3"),
        (("--exchange", "psgd:p=8,p=9"), "p=8 and p=9: give it once"),
        (("--exchange", "psgd:p=none"), "p=none is not a number of iterations"),
        (("--exchange", "rsgd:levels=3"), "rsgd takes p=ITERATIONS and nothing else"),
        (("--exchange", "none:via=moon"), "via=moon is unknown: choose from gather, server, ring"),
        (("--exchange", "terngrad:via=ring,exempt=2"), "exempt=2 names layers of the model"),
        (("--exchange", "inc", "--error-feedback"), "none of inc can keep a residual"),
        (("--exchange", "wa", "--exchange", "psgd", "--bucket-mb", "1"), "none of wa, psgd sums gradients"),
        (
            ("--exchange", "terngrad:exempt=2", "--bucket-mb", "1"),
            "none of terngrad:exempt=2 sums gradients in buckets",
        ),
        (("--exchange", "wgt:layers=0.1/0.2", "--bucket-mb", "1"), "none of wgt:layers=0.1/0.2 sums gradients"),
        (("--exchange", "inc", "--bucket-mb", "-1"), "bucket_mb is -1: give 0, or more if inc sums"),
        (("--exchange", "wa:groups=3"), "wa:groups=3: 4 workers do not make 3 groups of equal size"),
        (("--data", "cifar10", "--data-dir", "/nonexistent"), "hdc takes 28x28 grey images"),
        (("--data", "synthetic:side=x"), "synthetic data of this model takes channels=N, side=N"),
        (("--sharing", "fair"), "sharing 'fair' is unknown: choose from partitioned, shared"),
        (("--nodes", "0"), "0 workers"),
        (("--nodes", "1", "--exchange", "wa", "--exchange", "inc+c"), "1 worker exchanges nothing by inc+c"),
        (("--rate", "fast"), "rate 'fast' is not a number with a unit"),
        (("--bound", "17"), "bound 17 is outside 1..16"),
        (("--codec", "zip"), "codec 'zip' is unknown"),
        (("--packing", "loose"), "packing 'loose' is unknown"),
        (("--mtu", "10"), "mtu 10 is outside"),
        (("--data", "mnist", "--data-dir", "/nonexistent"), "/nonexistent has no train-images-idx3-ubyte[.gz]"),
        (("--loss-scale", "3"), "not a power of two"),
        (("--optimizer", "lbfgs"), "optimizer 'lbfgs' is unknown: choose from sgd, adam"),
        (("--stop-at-accuracy", "0.9"), "measure it: --evaluate-every N"),
        (("--seeds", "1,1"), "write whole numbers with commas between them, each once"),
        (("--checkpoint", "/dev/null/x"), "cannot write into the folder /dev/null/x: Not a directory"),
        (("--resume",), "--resume needs --checkpoint DIR"),
        (("--capture-every", "5"), "--capture-every goes with --capture FILE"),
        (("--checkpoint-every", "5"), "--checkpoint-every goes with --checkpoint DIR"),
        (("--checkpoint", "/nonexistent", "--resume"), "/nonexistent holds no checkpoint of "),
        (("--data-dir", "/nonexistent"), "--data digits reads no folder: leave out --data-dir"),
        (("--checkpoint", "/nonexistent", "--checkpoint-every", "0"), "every 0 iterations: it must be at least 1"),
        (("--out", "/"), "cannot write /: Is a directory"),
        (("--out", "/nonexistent/runs.jsonl"), "/nonexistent is not a folder"),
        (("--exchange", "inc", "--capture", "/nonexistent/g.npy"), "/nonexistent is not a folder"),
        (("--exchange", "inc", "--capture", "/"), "cannot write /: Is a directory"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(words: tuple[str, ...], says: str) -> None:
    assert says in refusal("train", "hdc", *words)


@pytest.mark.parametrize("command", [("train", "hdc"), ("demo",), ("report",), ("warmup",)], ids=" ".join)
def test_help_has_an_example(command: tuple[str, ...]) -> None:
    done = netoffload(*command, "--help")
    assert done.returncode == 0
    assert f"Example: netoffload {' '.join(command)}" in " ".join(done.stdout.split())


def test_a_demo_without_a_record_leaves_everything_as_it_was(tmp_path: Path) -> None:
    new, nested, old = tmp_path / "new", tmp_path / "one" / "in" / "another", tmp_path / "old"
    old.mkdir()
    (old / "records.jsonl").write_text("an earlier record\n")
    for folder in (new, nested, old):
        done = netoffload("demo", "--nodes", "1", "--out", str(folder))
        assert done.returncode == 2
        assert "1 worker exchanges nothing by inc" in done.stderr
    assert list(tmp_path.rglob("*")) == [old, old / "records.jsonl"]
    assert (old / "records.jsonl").read_text() == "an earlier record\n"


def test_records_are_not_appended_to_what_is_no_text(tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    out.write_bytes(b"\xff\xfe")
    assert f"cannot read records from {out}" in refusal("train", "hdc", "--exchange", "inc", "--out", str(out))
    assert out.read_bytes() == b"\xff\xfe"


def test_the_exchanges_are_listed() -> None:
    done = netoffload("train", "--list")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("wa+c", "psgd", "pqasgd", "compressors: none, nic"))


def test_a_page_of_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    line = refusal("report", str(tmp_path), "--html")
    assert line == f"netoffload: {tmp_path} is no folder of netoffload reproduce: it has no records of an item"
    assert f"{tmp_path} is a folder: give --html or --lab FILE" in refusal("report", str(tmp_path))
    out = ("--out", str(tmp_path / "report"))
    assert f"there is no {tmp_path / 'nothing'}: give a file" in refusal("report", str(tmp_path / "nothing"), *out)
    assert not list(tmp_path.iterdir())


def a_record() -> Record:
    return dataclasses.replace(a_run("inc", 0.1), learning=Learning(0.9, {}, 0.1))


def test_a_report_prints_json_alone_when_asked(tmp_path: Path) -> None:
    record = a_record()
    results.append_records(tmp_path / "runs.jsonl", [record])
    done = netoffload("report", str(tmp_path / "runs.jsonl"), "--out", str(tmp_path / "report"), "--json")
    assert done.returncode == 0
    printed = json.loads(done.stdout)
    assert printed["exchanges"]["inc"]["s_per_iteration"] == 0.1
    assert printed == json.loads((tmp_path / "report" / "summary.json").read_text())


@pytest.mark.parametrize(
    ("codec", "zeros", "ways_out"),
    [
        ("inceptionn", 970, "a larger --loss-scale (the demo takes 8) or --codec bounded"),
        ("bounded", 1000, "a larger --loss-scale (the demo takes 8) or --bound"),
        ("inceptionn", 969, None),
        ("inceptionn", 0, None),
    ],
)
def test_a_run_whose_floats_crossed_as_0_is_remarked_upon(codec: str, zeros: int, ways_out: str | None) -> None:
    record = a_record()
    record = dataclasses.replace(
        record,
        configuration=dataclasses.replace(record.configuration, exchange="inc+c", codec=codec, bound_k=10),
        traffic=dataclasses.replace(record.traffic, classes=ClassCounts(zeros, 1000 - zeros, 0, 0)),
    )
    remarks = remarks_on(record)
    if ways_out is None:
        assert remarks == []
    else:
        assert [remark.partition(": ")[0] for remark in remarks] == ["inc+c"]
        assert f"{zeros / 10:.1f} % of the floats" in remarks[0]
        assert remarks[0].endswith(ways_out)


def test_a_run_is_remarked_upon_for_its_own_faults_only() -> None:
    record = a_record()
    assert remarks_on(record) == []
    [remark] = remarks_on(dataclasses.replace(record, first_iteration=2, timed_iterations=5))
    assert remark == "inc reached 90.0 % after 7 of 10 iterations"
    diverged = dataclasses.replace(record, learning=dataclasses.replace(record.learning, final_loss=None))
    assert remarks_on(diverged) == ["inc diverged: its loss is not a number; try a smaller --learning-rate"]


def test_a_run_whose_octets_crossed_uncompressed_is_remarked_upon() -> None:
    def remarks(crossed_raw: int | None) -> list[str]:
        traffic = dataclasses.replace(a_record().traffic, raw_octets=9_800, crossed_raw_octets=crossed_raw)
        return remarks_on(dataclasses.replace(a_record(), traffic=traffic))

    assert remarks(None) == remarks(0) == remarks(200) == []
    [remark] = remarks(201)
    assert remark.startswith("inc: 201 of 10,001 tagged octets crossed uncompressed: ")


def test_where_nobody_watches_every_tenth_of_a_run_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(["inc"], 40) as (_, show):
        for step in (Step(0), Step(1, 2.5), Step(4, 2.0), Step(6, 1.9), Step(20, 1.5, 0.75), Step(40, None, 0.75)):
            show("inc", step)
    assert capsys.readouterr().err.splitlines() == [
        "training inc",
        "inc: 4 of 40, loss 2",
        "inc: 20 of 40, loss 1.5, accuracy 75 %",
        "inc: 40 of 40, accuracy 75 %",
    ]
