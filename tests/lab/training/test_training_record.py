"""From counters and outcomes to a record: the meter over real sockets, and the checks that refuse a run."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from netoffload.config import ENV_METER
from netoffload.control import serve_control
from netoffload.errors import ReplicaError, RunError, UsageError
from netoffload.lab.cli.training_runs import RunSeries
from netoffload.lab.reports.summary import method_name
from netoffload.lab.results import (
    ClassCounts,
    Learning,
    NodeTraffic,
    Traffic,
    from_line,
    read_file,
    to_line,
    write_file,
)
from netoffload.lab.testbed import NicSettings, TestbedSettings
from netoffload.lab.training.config import RankJob, TrainSettings
from netoffload.lab.training.memory import BASE_OCTETS, check_memory, peak_memory_octets, rank_octets
from netoffload.lab.training.outcome import (
    Coded,
    Parts,
    RankOutcome,
    Reading,
    Step,
    check_traffic,
    read_meter,
    traffic_between,
)
from netoffload.lab.training.plan import BASELINES, Outputs, Planned, parse_seeds, plan_runs
from netoffload.lab.training.run import START_S, make_record, run_all, time_limit_s
from netoffload.methods import Sent
from tests.lab.records import VERSIONS

PARAMETERS = 1000
ITERATIONS = 2
GRADIENT_OCTETS = 4 * PARAMETERS * ITERATIONS
NO_CLASSES = ClassCounts(0, 0, 0, 0)


def some_traffic(*wire_octets: int, raw_octets: int = 0, blocks: int = 0) -> Traffic:
    nodes = tuple(NodeTraffic(f"n{at}", octets, 5) for at, octets in enumerate(wire_octets))
    return Traffic(nodes, raw_octets, raw_octets // 4, blocks, NO_CLASSES, 0.0, {})


def test_readings_come_from_the_meter_and_the_nics_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nic_path = str(tmp_path / "nic")

    def wires(_: Mapping[str, Any]) -> Mapping[str, Any]:
        node = {"address": "10.0.0.1", "tx_octets": 700, "tx_frames": 7}
        return {"nodes": [{"name": "n0", "nic_control": nic_path, **node}, {"name": "n1", "nic_control": None, **node}]}

    def counters(_: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"counters": {"tx_blocks": 3}}

    monkeypatch.setenv(ENV_METER, str(tmp_path / "meter"))
    with serve_control(tmp_path / "meter", {"wires": wires}), serve_control(Path(nic_path), {"counters": counters}):
        reading = read_meter()
    assert reading == Reading({"n0": (700, 7), "n1": (700, 7)}, {"n0": {"tx_blocks": 3}})
    monkeypatch.delenv(ENV_METER)
    with pytest.raises(RunError, match="NETOFFLOAD_METER is not set"):
        read_meter()


def test_traffic_is_the_difference_of_two_readings() -> None:
    first = {"tx_raw_octets": 100, "tx_payload_octets": 50, "tx_class_0": 1, "tx_codec_ns": 5, "drop_checksum": 1}
    later = {
        "tx_raw_octets": 900, "tx_payload_octets": 250, "tx_class_0": 11, "tx_class_8": 2, "tx_class_16": 3,
        "tx_class_32": 4, "tx_codec_ns": 10**9 + 5, "rx_codec_ns": 10**9, "tx_blocks": 6, "drop_checksum": 1,
        "drop_no_flow": 2,
    }  # fmt: skip
    before = Reading({"n0": (10, 1), "n1": (0, 0)}, {"n0": first, "n1": {"tx_codec_ns": 0}})
    after = Reading({"n0": (30, 2), "n1": (7, 1)}, {"n0": later, "n1": {"tx_codec_ns": 10**9}})
    traffic = traffic_between(before, after)
    assert traffic.nodes == (NodeTraffic("n0", 20, 1), NodeTraffic("n1", 7, 1))
    assert (traffic.raw_octets, traffic.payload_octets, traffic.blocks, traffic.ratio) == (800, 200, 6, 4.0)
    assert traffic.classes == ClassCounts(10, 2, 3, 4)
    assert traffic.codec_s == 2.0  # n0's, both directions; n1 was less busy
    assert traffic.drops == {"drop_no_flow": 2}


def by_nic(octets: int, exact_segments: int = 0) -> Coded:
    return Coded(octets, {"bypass_no_gain": exact_segments, "bypass_not_floats": 3}, 0, 0, NO_CLASSES, 0.0)


def ranks_that_sent(*sent: Sent, compressed: tuple[int, ...] = ()) -> list[RankOutcome]:
    first = outcomes_of_wa()[0]
    return [
        dataclasses.replace(first, rank=rank, sent=one, coded=by_nic(compressed[rank] if compressed else 0))
        for rank, one in enumerate(sent)
    ]


def test_a_run_around_the_wires_is_refused_whichever_rank_it_was() -> None:
    ring = TrainSettings("inc", nodes=2, iterations=ITERATIONS)
    sent = Sent(octets=6000)
    check_traffic(ring, some_traffic(6000, 6000), ranks_that_sent(sent, sent))
    with pytest.raises(RunError, match="5999 octets crossed the wire of n1, rank 1 sent 6000"):
        check_traffic(ring, some_traffic(6000, 5999), ranks_that_sent(sent, sent))


def test_a_run_that_was_not_compressed_as_asked_is_refused() -> None:
    ring = TrainSettings("inc+c", nodes=2, iterations=ITERATIONS)
    sent, traffic = Sent(tagged_octets=1500), some_traffic(1000, 1000, raw_octets=3000, blocks=9)
    check_traffic(ring, traffic, ranks_that_sent(sent, sent, compressed=(1500, 1490)))
    reasons = r"\(segments: 3 bypass_not_floats; frames that NICs dropped: none\)"
    with pytest.raises(RunError, match=f"the NIC of n1 compressed 750 of 1500 tagged octets of rank 1: .*{reasons}"):
        check_traffic(ring, traffic, ranks_that_sent(sent, sent, compressed=(2250, 750)))
    large = Sent(tagged_octets=1_000_000)
    ranks = ranks_that_sent(large, large, compressed=(990_000, 900_000))
    without_gain = dataclasses.replace(ranks[1], coded=by_nic(900_000, 1))  # a segment that would not shrink is raw
    check_traffic(ring, traffic, [ranks[0], dataclasses.replace(ranks[1], coded=by_nic(900_000, 2))])
    with pytest.raises(RunError, match="compressed 900000 of 1000000 tagged octets of rank 1"):
        check_traffic(ring, traffic, [ranks[0], without_gain])
    raw = dataclasses.replace(ranks[1], coded=by_nic(480_000, 99))
    with pytest.raises(RunError, match="compressed 480000 of 1000000 tagged octets of rank 1"):
        check_traffic(ring, traffic, [ranks[0], raw])
    with pytest.raises(RunError, match="no rank sent anything tagged"):
        check_traffic(ring, traffic, ranks_that_sent(Sent(), Sent()))
    plain = TrainSettings("inc", nodes=2, iterations=ITERATIONS)
    with pytest.raises(RunError, match="compressed 1 frames of a run that is not tagged"):
        check_traffic(plain, some_traffic(9000, 9000, raw_octets=100, blocks=1), ranks_that_sent(Sent(), Sent()))


def test_the_time_limit_of_a_run_is_its_model_s() -> None:
    hdc, cnn = (time_limit_s(TrainSettings("inc", model=model), 10**6) - START_S for model in ("hdc", "cnn"))
    exchange_s = 2 * 4 * 1_149_010 * 32 / 1e6
    assert hdc == pytest.approx(200 * (1.149010 + 10 * exchange_s))
    assert cnn < hdc / 5  # a tenth of the parameters


def outcomes_of_wa() -> list[RankOutcome]:
    worker = RankOutcome(
        0, True, (0.10, 0.20), (Parts(0.004, 0.006, sum_s=0.001), Parts(0.02)), "aa", None, None, None,
        PARAMETERS, Sent(vector_octets=GRADIENT_OCTETS), by_nic(0), 7000,
    )  # fmt: skip
    first = dataclasses.replace(
        worker, learning=Learning(0.9, {}, 0.5), traffic=some_traffic(99, 98, 97), versions=VERSIONS
    )
    second = dataclasses.replace(worker, rank=1, wall_s=(0.12, 0.22), parts=(Parts(0.01, 0.02), Parts(0.04)))
    parts = (Parts(update_s=0.005, sum_s=0.002),) * 2
    server = dataclasses.replace(worker, rank=2, is_worker=False, parts=parts)
    return [first, second, server]


def record_of(outcomes: list[RankOutcome], method: str = "wa", **options: Any) -> Any:
    settings = TrainSettings(method, nodes=2, iterations=ITERATIONS, **options)
    testbed = TestbedSettings(3, rate_bps=10**9, nic=NicSettings(bound_k=8))
    return make_record(settings, testbed, 9.6e8, "2026-01-01T00:00:00+00:00", outcomes)


def test_a_record_counts_the_aggregator_s_update_as_computing() -> None:
    record = record_of(outcomes_of_wa())
    assert record.timing.wall_s.minimum == pytest.approx(0.11)
    assert record.timing.compute_s.minimum == pytest.approx(0.02 + 0.005)
    assert record.timing.communicate_s.minimum == pytest.approx(0.11 - 0.025)
    parts = [getattr(record.timing, f"{name}_s") for name in ("forward", "backward", "update", "sum", "hidden")]
    assert [part.minimum for part in parts] == pytest.approx([0.007, 0.0, 0.005, 0.002, 0.0])
    assert parts[3].maximum == pytest.approx(0.0005 + 0.002)
    assert record.peak_memory_octets == (7000,) * 3
    assert (record.configuration.bound_k, record.configuration.nodes, record.learning.accuracy) == (8, 2, 0.9)
    assert record.compression_efficiency == 1
    assert from_line(to_line(record)) == record


def test_compression_efficiency_is_the_share_of_what_plain_gradients_take() -> None:
    outcomes = [
        dataclasses.replace(outcome, sent=Sent(vector_octets=GRADIENT_OCTETS // 8)) for outcome in outcomes_of_wa()
    ]
    assert record_of(outcomes).compression_efficiency == 1 / 8
    through_nics = dataclasses.replace(outcomes_of_wa()[0], traffic=some_traffic(99, 99, 99, raw_octets=800))
    assert record_of([through_nics, *outcomes_of_wa()[1:]]).compression_efficiency == 1 / 4


def test_a_periodic_method_is_timed_by_whole_periods() -> None:
    wall_s, parts = (0.01, 0.11, 0.01, 0.13, 0.01), (Parts(0.01),) * 5
    workers = [dataclasses.replace(outcome, wall_s=wall_s, parts=parts) for outcome in outcomes_of_wa()[:2]]
    record = record_of(workers, "psgd:p=2")
    assert (record.timing.wall_s.minimum, record.timing.wall_s.maximum) == pytest.approx((0.06, 0.07))
    assert record.timing.compute_s.median == pytest.approx(0.01)


def test_replicas_that_differ_are_an_error_that_names_them() -> None:
    outcomes = outcomes_of_wa()
    outcomes[1] = dataclasses.replace(outcomes[1], sha256="ab")
    with pytest.raises(ReplicaError, match="parameters of rank 1 differ"):
        record_of(outcomes)


def test_a_job_and_what_a_rank_leaves_travel_as_files_and_their_absence_is_an_error(tmp_path: Path) -> None:
    for value in (outcomes_of_wa()[0], RankJob(TrainSettings("inc+c", nodes=3, loss_scale=8), "/data")):
        write_file(tmp_path / "a.json", value)
        assert read_file(type(value), tmp_path / "a.json") == value
    with pytest.raises(UsageError, match=r"cannot read .*other\.json"):
        read_file(RankJob, tmp_path / "other.json")
    with pytest.raises(RunError, match=r"rank 1 left nothing: .*rank1\.json"):
        read_file(RankOutcome, RankOutcome.path(tmp_path, 1), "rank 1 left nothing", error=RunError)


def test_a_run_that_memory_does_not_hold_is_refused_in_one_line() -> None:
    hdc, large = TrainSettings("inc"), TrainSettings("inc", model="cnn", batch=1_000_000)
    assert 3 * 4 * 1_149_010 < check_memory([hdc]) - BASE_OCTETS < 4 * 4 * 1_149_010
    with pytest.raises(UsageError, match=r"cnn by inc needs about \d{3}\.\d GB on each of 4 workers, .* are free"):
        check_memory([hdc, large])
    worker, aggregator = rank_octets(TrainSettings("wa"))
    assert (worker, aggregator) < (rank_octets(hdc)[0], worker + 4 * 1_149_010 + 1)  # the aggregator's is the momentum
    assert rank_octets(TrainSettings("inc", optimizer="adam"))[0] == rank_octets(hdc)[0] + 4 * 1_149_010


def test_buckets_bound_what_payloads_take() -> None:
    whole = TrainSettings("none", model="vgg16", batch=1)
    in_parts = dataclasses.replace(whole, bucket_mb=25)
    largest = 4 * 25_088 * 4096  # octets of its first fully connected layer
    assert rank_octets(whole)[0] - rank_octets(in_parts)[0] == 3 * (4 * 138_357_544 - largest)


def test_peak_memory_is_this_process_s() -> None:
    resident = 4096 * int(Path("/proc/self/statm").read_text().split()[1])
    assert peak_memory_octets() >= resident


def test_runs_that_do_not_fit_a_testbed_are_refused_before_anything_is_built() -> None:
    wa, ring = TrainSettings("wa", nodes=2), TrainSettings("inc+c", nodes=2)
    with pytest.raises(UsageError, match="need 3 nodes, the testbed has 2"):
        run_all([ring, wa], TestbedSettings(2))
    with pytest.raises(UsageError, match="needs NICs"):
        run_all([ring], TestbedSettings(2, nic=None))
    with pytest.raises(UsageError, match="different data sets or numbers of workers"):
        run_all([ring, dataclasses.replace(ring, batch=9, nodes=1)], TestbedSettings(2))
    with pytest.raises(UsageError, match="nothing to run"):
        run_all([], TestbedSettings(2))


def test_baselines_run_without_nics_unless_asked_otherwise() -> None:
    runs = [TrainSettings(name, nodes=2) for name in ("inc+c", "inc", "wgt")]
    plans = {baselines: [(run.name, run.has_nics) for run in plan_runs(runs, baselines)] for baselines in BASELINES}
    direct, nic = [("inc", False), ("wgt", False)], [("inc via NICs", True), ("wgt via NICs", True)]
    assert plans == {
        "direct": [*direct, ("inc+c", True)],
        "nic": [("inc+c", True), *nic],
        "both": [*direct, ("inc+c", True), *nic],
    }
    with pytest.raises(UsageError, match="baselines 'none' is unknown"):
        plan_runs(runs, "none")
    inline = [dataclasses.replace(run, offload="inline") for run in runs]
    named = [(run.name, run.has_nics) for run in plan_runs(inline)]
    assert named == [("inc+c inline", False), ("inc", False), ("wgt", False)]
    with pytest.raises(UsageError, match="offload 'off' is unknown: choose from nic, inline"):
        dataclasses.replace(runs[0], offload="off")


def test_runs_of_several_seeds_are_told_apart() -> None:
    assert parse_seeds("7,1") == (7, 1)
    for text in ("", "1,1", "1,x", "1,,2", "-1"):
        with pytest.raises(UsageError, match="write whole numbers with commas"):
            parse_seeds(text)
    runs = [TrainSettings(name, nodes=2, seed=seed) for seed in (1, 2) for name in ("inc+c", "wgt")]
    names = ["wgt seed 1", "wgt seed 2", "inc+c seed 1", "inc+c seed 2"]
    assert [run.name for run in plan_runs(runs)] == names
    assert [run.folder for run in plan_runs(runs[:1])] == ["inc+c-seed-1"]
    found = RunSeries.of(runs, "direct")
    assert list(found.missing("it broke")) == names


def test_a_record_of_a_resumed_run_counts_what_it_timed() -> None:
    outcomes = [dataclasses.replace(outcome, first_iteration=7) for outcome in outcomes_of_wa()]
    record = record_of(outcomes)
    assert (record.first_iteration, record.timed_iterations, record.configuration.iterations) == (7, 2, 2)
    assert record.compression_efficiency == 1


def test_optimizer_and_schedule_of_a_record_are_whole() -> None:
    asked = record_of(outcomes_of_wa()).configuration
    assert asked.optimizer == "sgd:momentum=0.9,weight_decay=5e-05,nesterov=false"
    assert asked.schedule == "step:warmup=0,divisor=5.0,interval=2000"
    assert (asked.momentum, asked.learning_rate_divisor, asked.learning_rate_interval) == (0.9, 5.0, 2000)


def test_a_run_that_is_over_is_not_done_again(tmp_path: Path) -> None:
    run, other = (Planned(TrainSettings("wa", nodes=2, seed=seed, iterations=2), False) for seed in (1, 2))
    record = record_of(outcomes_of_wa())
    outputs = Outputs(checkpoint=tmp_path, resume=True)
    with pytest.raises(UsageError, match="holds no checkpoint of wa-seed-1, wa-seed-2: leave --resume out"):
        outputs.check([run, other], None)
    asked = outputs.checkpointing(run, None)
    assert asked is not None
    outputs.keep(run, None, record)
    said = {"format": 3, "run": asked.run, "iteration": 2, "accuracy": 0.9}
    Path(asked.folder, "checkpoint.json").write_text(json.dumps(said))
    outputs.check([run, other], None)
    with pytest.raises(UsageError, match="holds no checkpoint of wa-seed-2, but of wa-seed-1: leave --resume out"):
        outputs.check([other], None)
    assert (outputs.finished(run, None), outputs.finished(other, None)) == (record, None)
    Path(asked.folder, "record.json").rename(tmp_path / "record.json")
    with pytest.raises(UsageError, match=r"wa is over after 2 iterations and left no record: remove .*wa-seed-1"):
        outputs.finished(run, None)
    (tmp_path / "record.json").rename(Path(asked.folder, "record.json"))
    longer = dataclasses.replace(run, settings=dataclasses.replace(run.settings, iterations=3, eval_every=1))
    assert outputs.finished(longer, None) is None
    enough = dataclasses.replace(longer, settings=dataclasses.replace(longer.settings, stop_at_accuracy=0.9))
    assert outputs.finished(enough, None) == record
    with pytest.raises(UsageError, match="holds a checkpoint: go on with --resume"):
        dataclasses.replace(outputs, resume=False).check([run], None)


def test_a_step_says_what_is_known() -> None:
    assert Step(1, 0.25, 0.912).learnt == "loss 0.25, accuracy 91.2 %"
    assert (Step(1, None, 0.5).learnt, Step(1, 2.0).learnt, Step(1).learnt) == ("accuracy 50 %", "loss 2", "")


def test_tagged_octets_that_nobody_compressed_are_in_the_record() -> None:
    first, second, server = (dataclasses.replace(one, sent=Sent(tagged_octets=1000)) for one in outcomes_of_wa())
    traffic = some_traffic(2000, 2000, 2000, raw_octets=2600, blocks=9)
    outcomes = [
        dataclasses.replace(first, coded=by_nic(1100), traffic=traffic),
        dataclasses.replace(second, coded=by_nic(600, 9)),
        dataclasses.replace(server, coded=by_nic(900, 9)),
    ]
    assert record_of(outcomes, "wa+c").traffic.crossed_raw_octets == 400 + 100


def test_what_ranks_compressed_by_themselves_counts_as_what_nics_did() -> None:
    outcomes = outcomes_of_wa()
    coded = Coded(0, {}, 400, 100, ClassCounts(50, 40, 10, 0), 0.25)
    first = dataclasses.replace(outcomes[0], coded=coded, sent=Sent(0, 400, GRADIENT_OCTETS))
    second = dataclasses.replace(first, rank=1, traffic=None, coded=dataclasses.replace(coded, codec_s=0.5))
    record = record_of([first, second], "inc+c", offload="inline")
    assert (record.traffic.raw_octets, record.traffic.payload_octets, record.traffic.ratio) == (800, 200, 4)
    assert record.traffic.classes == ClassCounts(100, 80, 20, 0)
    assert record.traffic.codec_s == 0.5
    assert method_name(record) == "inc+c inline"
