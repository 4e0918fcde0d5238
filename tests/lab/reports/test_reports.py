import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from netoffload.errors import UsageError
from netoffload.lab import reports
from netoffload.lab.reports.curves import curve_panels
from netoffload.lab.reports.figure import draw_figure, lay_out
from netoffload.lab.reports.table import TIMES
from netoffload.lab.results import Learning, Record, Spread, append_records
from tests.lab.records import a_run
from tests.shared.commands import netoffload

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


PARTS = ("forward", "backward", "update", "sum", "hidden")


def four_runs() -> list[Record]:
    times = {"inc+c": 0.025, "wa": 0.300, "inc": 0.075, "wa+c": 0.150}  # not in the order of the report
    return [a_run(exchange, wall_s) for exchange, wall_s in times.items()]


def test_summary_has_the_keys_that_others_read() -> None:
    summary = json.loads(json.dumps(reports.summarise(four_runs()).to_json()))
    assert list(summary["exchanges"]) == ["wa", "wa+c", "inc", "inc+c"]
    compressed_ring = summary["exchanges"]["inc+c"]
    assert compressed_ring["s_per_iteration"] == 0.025
    assert compressed_ring["compute_s"] == 0.010
    assert compressed_ring["communicate_s"] == pytest.approx(0.015)
    assert compressed_ring["wire_bytes_per_iteration"] == 5_000_000
    assert compressed_ring["wire_frames_per_iteration"] == 700
    assert compressed_ring["ratio"] == 5
    assert compressed_ring["accuracy"] == 0.975
    assert compressed_ring["codec_s"] == pytest.approx(0.004)
    assert compressed_ring["classes"] == {"0": 0.7, "8": 0.2, "16": 0.09, "32": 0.01}
    assert summary["exchanges"]["inc"]["ratio"] == 1
    assert summary["rate_bps_asked"] == 10**9
    assert summary["rate_bps_measured"] == 9.6e8
    assert summary["speedup_wa_to_inc+c"] == pytest.approx(12)
    assert summary["speedup_inc_to_inc+c"] == pytest.approx(3)


def test_repeated_runs_are_a_median_and_a_mean_with_its_deviation() -> None:
    runs = [
        replace(a_run("inc", wall_s, seed=seed), learning=Learning(accuracy, {}, loss))
        for seed, wall_s, accuracy, loss in ((0, 0.07, 0.90, 0.5), (1, 0.09, 0.94, None), (2, 0.08, 0.98, 0.3))
    ]
    skewed = reports.summarise([*runs[:2], a_run("inc", 0.2)])
    assert (skewed.bars["inc"].s_per_iteration, skewed.bars["inc"].runs) == (0.09, 3)
    assert "speedup_inc_to_inc+c" not in skewed.to_json()
    summary = reports.summarise([*runs, a_run("wa", 0.3)])
    rows = {row[0]: row[1:] for row in reports.table_of(summary).rows}
    assert rows["time, ms"] == ["300.0", "80.0 ± 10"]
    assert rows["accuracy on test set, %"] == ["97.5", "94.0 ± 4"]
    assert rows["loss of last batch"] == ["0.1", "0.4 ± 0.14"]
    assert "1 or 3 runs each: ± their standard deviation" in reports.describe_run(summary)
    written = summary.to_json()["exchanges"]["inc"]["over_runs"]
    assert written["accuracy"] == {"mean": pytest.approx(0.94), "deviation": pytest.approx(0.04)}
    diverged = replace(runs[0], learning=Learning(0.1, {}, None))
    assert reports.table_of(reports.summarise([diverged])).rows[-3][1] == "-"


def test_runs_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(UsageError, match="differ in rate_bps"):
        reports.summarise([a_run("inc", 0.07), a_run("inc+c", 0.03, rate_bps=10**8)])
    with pytest.raises(UsageError, match="no record"):
        reports.summarise([])


@pytest.mark.parametrize("field", ["machine", "cpu", "cores"])
def test_records_of_two_machines_are_not_compared(field: str) -> None:
    runs = four_runs()
    other: Any = {"machine": "ba9876543210", "cpu": "another CPU", "cores": 64}[field]
    runs[2] = replace(runs[2], versions=replace(runs[2].versions, **{field: other}))
    with pytest.raises(UsageError, match=f"two machines .*{other}"):
        reports.summarise(runs)


def test_a_speed_up_is_over_the_baseline_without_nics() -> None:
    runs = [a_run("inc", 0.09, via_nics=True), a_run("inc+c", 0.03), a_run("inc", 0.06)]
    summary = reports.summarise(runs)
    assert list(summary.bars) == ["inc", "inc via NICs", "inc+c"]
    assert summary.speedup("inc", "inc+c") == pytest.approx(2)
    assert reports.summarise(runs[:2]).speedup("inc", "inc+c") == pytest.approx(3)
    assert "inceptionn 2^-10" in reports.describe_run(summary)


def test_learning_rates_may_differ_between_bars_and_are_told() -> None:
    runs = four_runs()
    runs[3] = a_run("wa+c", 0.150, learning_rate=0.01)
    assert "learning rate 0.1 (wa+c 0.01)" in reports.describe_run(reports.summarise(runs))
    with pytest.raises(UsageError, match="differ in learning_rate"):
        reports.summarise([*runs, a_run("wa+c", 0.1)])


def test_the_table_says_what_was_measured() -> None:
    text = reports.table_text(reports.summarise(four_runs()))
    cells = {line[:28].strip(): line[28:].split() for line in text.splitlines()[2:]}
    assert "1 Gb/s links (measured 960 Mb/s)" in text.splitlines()[0]
    assert cells["per iteration"] == ["wa", "wa+c", "inc", "inc+c"]
    assert cells["time, ms"] == ["300.0", "150.0", "75.0", "25.0"]
    assert cells["on the wires, MB"] == ["5"] * 4
    assert cells["codec's compression ratio"] == ["-", "5.00", "-", "5.00"]
    assert cells["floats of 0/8/16/32 bit, %"] == ["-", "70/20/9/1", "-", "70/20/9/1"]
    assert cells["faster than inc"] == ["0.25×", "0.50×", "1.00×", "3.00×"]  # noqa: RUF001
    assert max(len(line) for line in text.splitlines()[2:]) <= 80


def bounds() -> list[Record]:
    return [a_run("inc+c", 0.02 + 0.005 * bound_k, bound_k=bound_k) for bound_k in (10, 6, 8)]


def test_a_comparison_of_bounds_shares_everything_else() -> None:
    summary = reports.summarise(bounds(), reports.get("bound"))
    assert list(summary.bars) == ["2^-6", "2^-8", "2^-10"]
    assert reports.describe_run(summary).startswith("HDC on digits, 1.15 M parameters · inc+c · 4 workers")
    assert "inceptionn, coalesced" in reports.describe_run(summary)
    assert reports.table_of(summary).rows[-1] == [
        "faster than 2^-6",
        *(f"{0.05 / (0.02 + 0.005 * k):.2f}{TIMES}" for k in (6, 8, 10)),
    ]
    written = summary.to_json()
    assert (written["axis"], written["machine"]) == ("bound", "0123456789ab, 2 cores of a CPU")
    assert written["configuration"].keys() >= {"exchange", "learning_rate"}
    assert "bound_k" not in written["configuration"]
    for other, field in (
        (a_run("inc", 0.1, via_nics=True), "exchange"),
        (a_run("inc+c", 0.1, rate_bps=10), "rate_bps"),
    ):
        with pytest.raises(UsageError, match=f"differ in {field}"):
            reports.summarise([*bounds(), other], reports.get("bound"))
    with pytest.raises(UsageError, match=r"differ in bound_k .* one by one, or with --axis bound"):
        reports.summarise(bounds())


def test_a_comparison_of_numbers_of_workers_is_in_their_order() -> None:
    runs = [a_run("inc", 0.05), a_run("inc", 0.04, nodes=2)]
    assert list(reports.summarise(runs, reports.get("nodes")).bars) == ["2 workers", "4 workers"]
    with pytest.raises(UsageError, match="axis 'colour' is unknown: choose from exchange, bound, nodes"):
        reports.get("colour")


def test_a_report_says_which_versions_differ() -> None:
    runs = four_runs()
    runs[2] = replace(runs[2], versions=replace(runs[2].versions, torch="2.4"))
    summary = reports.summarise(runs)
    assert summary.to_json()["differences"] == {"torch": ["2.3", "2.4"]}
    assert reports.describe_run(summary).endswith("differing torch: 2.3, 2.4")


def many_runs() -> list[Record]:
    names = ("inc", "terngrad", "qsgd:levels=7", "psgd", "rsgd", "pqasgd:p=4", "wgt", "inc+c")
    return [a_run(name, 0.01 * (at + 2)) for at, name in enumerate(names)]


def test_many_exchanges_are_rows() -> None:
    summary = reports.summarise(many_runs())
    assert list(summary.bars)[:3] == ["inc", "inc+c", "terngrad"]
    table = reports.table_of(summary)
    rows = {row[0]: row[1:] for row in table.rows}
    columns = [column.heading for column in table.columns][1:]
    assert {len(row) for row in rows.values()} == {len(columns)}
    assert rows["pqasgd:p=4"][columns.index("time ms")] == "70.0"
    assert rows["inc+c"][columns.index("efficiency %")] == "25"


def test_a_residual_is_part_of_a_row_s_name() -> None:
    runs = [a_run("qsgd", 0.1, **more) for more in ({}, {"error_feedback": True}, {"bucket_mb": 0.5})]
    assert list(reports.summarise(runs).bars) == ["qsgd", "qsgd+ef", "qsgd 0.5 MB"]


def test_the_parts_of_an_iteration_are_rows_where_a_record_has_them() -> None:
    old, run = a_run("wa", 0.3), a_run("inc", 0.1)
    spreads = {f"{name}_s": Spread.of([at / 1e3]) for at, name in enumerate(PARTS, 1)}
    new = replace(run, timing=replace(run.timing, **spreads), peak_memory_octets=(5_000_000, 7_000_000))
    text = reports.table_text(reports.summarise([old, new]))
    cells = {line[:28].strip(): line[28:].split() for line in text.splitlines()[2:]}
    names = ("forward, ms", "backward, ms", "update, ms", "adding gradients, ms", "hidden behind backward, ms")
    assert [cells[name] for name in names] == [["-", f"{at}.0"] for at in range(1, 6)]
    assert cells["memory of largest rank, MB"] == ["-", "7"]


@pytest.mark.slow
@pytest.mark.parametrize("runs", [four_runs(), many_runs(), [a_run("inc", 0.07)], [a_run("inc+c", 0.03)]], ids=len)
def test_a_report_is_a_folder_with_table_summary_and_figure(runs: Sequence[Record], tmp_path: Path) -> None:
    folder = tmp_path / "report"
    summary = reports.write_report(runs, folder)
    assert json.loads((folder / "summary.json").read_text()) == json.loads(json.dumps(summary.to_json()))
    assert (folder / "table.txt").read_text() == reports.table_text(summary)
    assert (folder / "figure.png").read_bytes().startswith(PNG_SIGNATURE)


def test_a_report_without_a_folder_is_only_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    append_records(tmp_path / "runs.jsonl", four_runs())
    printed = netoffload("report", "runs.jsonl", "--json")
    assert json.loads(printed.stdout) == json.loads(json.dumps(reports.summarise(four_runs()).to_json()))
    assert [one.name for one in tmp_path.iterdir()] == ["runs.jsonl"]


@pytest.mark.parametrize("runs", [four_runs(), [a_run("inc", 0.07)]], ids=len)
def test_no_word_of_the_figure_is_cut_off(runs: Sequence[Record]) -> None:
    figure, summary = Figure(), reports.summarise(runs)
    FigureCanvasAgg(figure)
    lay_out(figure, list(summary.bars.items()), "few", reports.describe_run(summary), summary)
    words = [text for axes in figure.axes for text in axes.texts]
    assert {"computation 10.0"} <= {line for text in words for line in text.get_text().splitlines()}
    for text in (*figure.texts, *words):
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.width, text.get_text()


def test_a_report_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(UsageError, match="cannot write the report"):
        reports.write_report(four_runs(), tmp_path / "taken")
    with pytest.raises(UsageError, match=r"the name of a figure ends in \.png, \.svg or \.pdf"):
        draw_figure(reports.summarise(four_runs()), tmp_path / "figure.nonsense")


def a_curve(exchange: str, wall_s: float, accuracies: dict[str, float], **configuration: Any) -> Record:
    learning = Learning(0.9, accuracies, 0.1, {"10": 2.5})
    return replace(a_run(exchange, wall_s, **configuration), learning=learning)


def test_curves_are_accuracy_over_octets_and_time_with_the_band_of_their_seeds() -> None:
    runs = [
        a_curve("inc", 0.2, {"10": 0.5, "20": 0.7}),
        a_curve("inc", 0.4, {"10": 0.7, "20": 0.8, "30": 0.9}, seed=2),  # the first seed has no accuracy at 30
        a_curve("inc+c", 0.1, {"10": 0.4, "20": 0.6}, codec="sparse", packing=None, offload="inline"),
        a_curve("inc", 0.3, {"10": 0.1, "20": 0.2}, model="gpt", data="text"),
        a_run("wa", 0.3),
    ]
    octets, time, losses, *gpt = curve_panels(runs)
    assert [panel.title for panel in (octets, time, losses, *gpt)] == ["hdc on digits"] * 3 + ["gpt on text"] * 3
    assert losses.series[1].xs == pytest.approx((1.0,))
    assert losses.series[1].ys == (2.5,)
    ring, coded = time.series
    assert (ring.name, coded.name) == ("inc", "inc+c inline, sparse")
    assert ring.xs == pytest.approx((3.0, 6.0))
    assert ring.ys == pytest.approx((60.0, 75.0))
    assert ring.band is not None
    assert np.array(ring.band) == pytest.approx(np.array([(50, 70), (70, 80)]))
    assert coded.band is None
    assert octets.series[0].xs == pytest.approx((50.0, 100.0))  # 50 MB in 10 iterations


@pytest.mark.slow
def test_curves_are_part_of_a_report_that_has_some(tmp_path: Path) -> None:
    curved = a_curve("inc", 0.2, {"10": 0.5, "20": 0.7})
    reports.write_report([curved], tmp_path)
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG_SIGNATURE)
    reports.write_report([a_run("inc", 0.2)], tmp_path)
    assert not (tmp_path / "curves.png").exists()
    with pytest.raises(UsageError, match="--evaluate-every"):
        reports.draw_curves([a_run("inc", 0.2)], tmp_path / "curves.png")
