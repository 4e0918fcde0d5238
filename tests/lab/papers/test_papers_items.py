"""The papers' items as data, steps that are done once, and the pages made from records."""

import dataclasses
import json
import math
import re
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from netoffload.compressors import Layout, registry
from netoffload.compressors.terngrad import TernGrad
from netoffload.errors import RunError, UsageError
from netoffload.lab import papers, results
from netoffload.lab.bench.eight_bit import PRINTED
from netoffload.lab.cli import reproduce
from netoffload.lab.papers import eight_bit, inceptionn, page, runs, terngrad, web
from netoffload.lab.papers.item import HOLDS, Claim, Item, Json, Kind, Paper, Reading, Setting, Step, printed
from netoffload.lab.papers.reproduction import Reproduction
from netoffload.lab.reports.panels import Panel, Series
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.inprocess import learnt
from tests.shared.commands import netoffload

LAB = Path(__file__).parents[3] / "docs" / "lab"

done: list[str] = []


def measured(key: str) -> Json:
    done.append(key)
    if key == "broken":
        raise RunError("a rank fell over")
    return {"value": 2.5}


class MadeItem(Item):
    claims = (
        Claim("a", "near", (2.4,), "x", "Table 1", within=0.2, reason="as it is"),
        Claim("b", "far", (2.8, 9.0), "x", "Table 1", Kind.FITTED, within=0.2, why="too short"),
        Claim("c", "no <way>", (1.0, 2.0), "x", "Fig. 1", Kind.NOT_HERE, why="no GPU"),
        Claim("d", "is so", (1.0,), HOLDS, "Fig. 2", why="never shown"),
    )


def made_item(*keys: str, data: str | None = None, name: str = "made-item") -> Item:
    def steps(_is_full: bool) -> list[Step]:
        return [Step.of(lambda _setting, key: measured(key), key, data=data) for key in keys]

    def read(values: Mapping[str, Json]) -> Reading:
        found = {key: value["value"] for key, value in values.items()}
        panel = Panel("bars", "what", "unit", (Series("here", tuple(found), tuple(found.values())),))
        return Reading(found, [panel] if found else [], ["It was measured."])

    return MadeItem(name, "A made item", "Smaller.", steps, read)


def test_a_damaged_data_set_fails_each_step_with_its_reason_and_is_no_divergence(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"no images")
    said = run(inceptionn.FIG4, tmp_path / "out", {"mnist": tmp_path})
    failed = [one for one in said if " failed: " in one]
    assert len(failed) == 10
    assert all("train-images-idx3-ubyte is damaged" in one for one in failed)


def test_steps_that_lack_a_data_set_are_one_line_and_none_begins(tmp_path: Path) -> None:
    done = netoffload("reproduce", "inceptionn-fig4", "--out", str(tmp_path / "out"))
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("inceptionn-fig4: ")]
    assert [re.sub(" it needs .*", "", line) for line in lines] == ["inceptionn-fig4: 10 steps left out:"] * 2


def run(item: Item, folder: Path, data: Mapping[str, Path] | None = None, *, is_full: bool = False) -> list[str]:
    done.clear()
    work = Reproduction([item], folder, is_full, data or {}, "netoffload reproduce made-item")
    return [str(one) for one in work.run(lambda _said, _share: None)]


def test_what_is_recorded_is_not_done_again(tmp_path: Path) -> None:
    assert run(made_item("a"), tmp_path) == []
    assert run(made_item("a", "b"), tmp_path) == []
    assert done == ["b"]
    path = results.steps_path(tmp_path, "made-item")
    path.write_text(path.read_text() + '{"format": 1, "item": "ma')  # killed while it wrote
    assert run(made_item("a", "b"), tmp_path) == []
    assert done == []
    run(made_item("a", "b"), tmp_path, is_full=True)
    assert done == ["a", "b"]
    assert [one.effort for one in results.read_steps(tmp_path, "made-item").values()] == ["full", "full"]


def test_a_record_says_where_it_comes_from(tmp_path: Path) -> None:
    run(made_item("a"), tmp_path)
    (record,) = results.read_steps(tmp_path, "made-item").values()
    assert (record.command, record.effort, record.value) == ("netoffload reproduce made-item", "quick", {"value": 2.5})
    assert re.fullmatch(r"[0-9a-f]{10}|unknown", record.commit)
    assert "cores of" in record.machine


def test_what_fails_or_lacks_data_does_not_stop_the_rest(tmp_path: Path) -> None:
    assert run(made_item("broken", "b"), tmp_path) == ["made-item: broken failed: a rank fell over"]
    assert done == ["broken", "b"]
    (missed,) = run(made_item("m", data="mnist"), tmp_path, {"mnist": tmp_path / "nowhere"})
    assert missed.startswith("made-item: m left out: it needs --mnist DIR")
    assert done == []


def test_damaged_records_are_refused(tmp_path: Path) -> None:
    path = results.steps_path(tmp_path, "made-item")
    damaged = {'{"format": 9}': "has format 9", '{"format": 8}': "lacks keys", "[]": "is not a record", "{": "not JSON"}
    for line, said in damaged.items():
        path.write_text(line + "\n")
        with pytest.raises(UsageError, match=rf"made-item.jsonl:1 .*{said}"):
            run(made_item("a"), tmp_path)


def test_a_value_that_no_step_makes_is_refused_with_its_file(tmp_path: Path) -> None:
    run(made_item("a"), tmp_path)
    path = results.steps_path(tmp_path, "made-item")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"value": None}) + "\n")
    with pytest.raises(
        UsageError, match=r"made-item.jsonl has a value that no step of made-item makes .*remove the file"
    ):
        page.write_item(made_item("a"), tmp_path)


def test_two_programs_do_not_reproduce_into_one_folder(tmp_path: Path) -> None:
    refused: list[str] = []

    def step(_setting: Setting) -> Json:
        with pytest.raises(UsageError) as caught:
            run(made_item("a"), tmp_path)
        refused.append(str(caught.value))
        return {"value": 1.0}

    assert run(dataclasses.replace(made_item(), steps=lambda _is_full: [Step("a", step)]), tmp_path) == []
    assert refused == [f"another program reproduces into {tmp_path}: wait for its end, or name another --out"]
    assert run(made_item("b"), tmp_path) == []


def test_a_step_of_an_older_format_is_read_and_not_done_again(tmp_path: Path) -> None:
    run(made_item("a"), tmp_path)
    path = results.steps_path(tmp_path, "made-item")
    (new,) = results.read_steps(tmp_path, "made-item").values()
    older = json.loads(path.read_text()) | {"format": 1}
    del older["settings"]
    path.write_text(json.dumps(older) + "\n")
    assert run(made_item("a"), tmp_path) == []
    assert done == []
    assert results.read_steps(tmp_path, "made-item") == {"a": new}


def test_the_table_says_how_each_claim_stands(tmp_path: Path) -> None:
    item = made_item("a", "b", "d")
    run(item, tmp_path)
    table = page.write_item(item, tmp_path)
    assert [row.verdict for row in table] == [
        "scaled: agrees",
        "fitted: differs: too short",
        "not here: no GPU",
        "scaled: holds",
    ]
    text = (tmp_path / "made-item.txt").read_text()
    assert "| near, x | Table 1 | 2.4 ± 0.2 (as it is) | 2.5 | scaled: agrees |" in text
    assert "| far, x | Table 1 | 2.8 to 9 ± 0.2 | 2.5 | fitted: differs: too short |" in text
    assert (tmp_path / "made-item.svg").exists()
    tally = page.tally([item], tmp_path)
    assert tally[Kind.SCALED] == {"agrees": 1, "holds": 1}
    assert tally[Kind.NOT_HERE] == {"not reproducible here": 1}


@pytest.mark.parametrize(
    ("printed", "ours", "verdict"),
    [
        ((2.2, 3.1), 3.2, "agrees"),
        ((2.2, 3.1), 2.5, "agrees"),
        ((2.2, 3.1), 2.09, "differs"),
        ((2.0,), 2.1, "agrees"),
        ((2.0,), 1.8, "differs"),
        ((), 2.0, "not judged"),
        ((2.0,), None, "missing"),
    ],
)
def test_a_value_agrees_within_its_tolerance(printed: tuple[float, ...], ours: float | None, verdict: str) -> None:
    assert Claim("a", "near", printed, "x", "Table 1", within=0.1).verdict(ours) == verdict


def test_many_claims_that_end_alike_are_one_line_of_the_page() -> None:
    class Long(Item):
        claims = tuple(
            Claim(str(n), f"number {n} of all", (n + 1.0,), "x", "Table 9", within=0.5, reason="half") for n in range(4)
        )

    item = Long("made-item", "A made item", "Smaller.", lambda _full: [], lambda _values: Reading({}, []))
    reading = Reading({"0": 1.0, "1": 2.0, "2": 3.25}, [])
    lines = list(page.markdown(item, reading, []))
    three = "1 ± 0.5; 2 ± 0.5; 3 ± 0.5 (half) | 1; 2; 3.25"
    assert f"| 3 x number ... of all, x | Table 9 | {three} | agrees |" in lines
    assert "| number 3 of all, x | Table 9 | 4 ± 0.5 (half) | - | missing |" in lines
    assert len(list(page.markdown(item, reading, [], is_whole=True))) == len(lines) + 2


def test_a_full_run_of_the_papers_own_model_and_length_is_measured(tmp_path: Path) -> None:
    item = dataclasses.replace(made_item("a"), is_own_when_full=True)
    for is_full, kind in ((False, Kind.SCALED), (True, Kind.MEASURED)):
        run(item, tmp_path, is_full=is_full)
        _, kept = page.read(item, tmp_path)
        assert [page.kind_of(claim, item, kept) for claim in item.claims] == [kind, Kind.FITTED, Kind.NOT_HERE, kind]


@pytest.mark.parametrize("name", papers.items())
def test_tolerances_are_narrow_and_have_a_reason(name: str) -> None:
    for claim in papers.items()[name].claims:
        if claim.within is not None:
            assert claim.printed, claim.id
            assert 0 < claim.within <= min(abs(value) for value in claim.printed), f"{claim.id}: wider than the value"
            assert claim.reason, claim.id
        if claim.kind is not Kind.NOT_HERE:
            assert len(claim.printed) <= 2


def test_a_difference_has_its_reason_in_a_sentence() -> None:
    for item in papers.items().values():
        reading, _ = page.read(item, LAB / "records")
        for claim in item.claims:
            if claim.verdict(reading.found.get(claim.id)) in page.DIFFERING:
                assert claim.why, f"{item.name}: {claim.id}"
                assert len(claim.why.split()) <= 25


def test_what_follows_by_construction_is_tested_and_claimed_nowhere() -> None:
    values = np.random.default_rng(1).normal(size=8000).astype(np.float32)
    layout = Layout.flat(values.size)
    for name, ratio in (("16b-T", 2.0), ("22b-T", 3.2), ("24b-T", 4.0)):
        coder = registry.parse(name)
        payload = coder.encode(values, coder.make_state(layout))
        assert values.nbytes / payload.size == pytest.approx(ratio, rel=0.01)
        assert not any(claim.id == f"ratio.{name}" for claim in papers.items()["inceptionn-fig14"].claims)
    ternary = registry.parse("terngrad")
    assert isinstance(ternary, TernGrad)
    halves = [values, values[::-1].copy()]
    states = [ternary.make_state(layout, seed=1, rank=rank) for rank in range(2)]
    shared = np.max([ternary.scalers(*pair) for pair in zip(halves, states, strict=True)], axis=0)
    decoded = [
        ternary.decode(ternary.encode_shared(one, shared, state), layout)
        for one, state in zip(halves, states, strict=True)
    ]
    assert [np.unique(one).size for one in decoded] == [3, 3]
    assert np.unique(decoded[0] + decoded[1]).size == 2 * 2 + 1
    assert np.abs(decoded[0]).max() == shared.max()
    assert pytest.approx(20.18, abs=0.01) == 32 / math.log2(3)


def test_the_page_is_whole(tmp_path: Path) -> None:
    items = [made_item("a"), made_item("a", name="another")]
    for item in items:
        run(item, tmp_path)
    text = web.text([Paper("made", "Somebody", "It <is> so.", items)], tmp_path)
    assert "<svg" in text
    assert "no &lt;way&gt;" in text
    assert not re.search(r"<(script|link|img)|src=|@import", text)
    assert len(set(found := re.findall(r'\bid="([^"]+)"', text))) == len(found)


@pytest.mark.parametrize("name", papers.items())
def test_items_are_read_from_nothing_and_say_why_not(name: str) -> None:
    item = papers.items()[name]
    assert item.read({}).found == {} or name.endswith("model")
    assert {claim.kind for claim in item.claims} - {Kind.NOT_HERE}
    assert len({claim.id for claim in item.claims}) == len(item.claims)
    assert all(claim.why for claim in item.claims if claim.kind is Kind.NOT_HERE)
    assert item.setting
    for effort in (False, True):
        keys = [step.key for step in item.steps(effort)]
        assert len(set(keys)) == len(keys) > 0
    lines = list(page.markdown(item, item.read({}), []))
    assert all(len(line) <= page.COLUMNS for line in lines if not line.startswith("|"))


def test_names_are_items_papers_or_all() -> None:
    assert [item.name for item in papers.chosen(["pqasgd", "pqasgd-q"])] == [
        "pqasgd-fig1",
        "pqasgd-q",
        "pqasgd-speedup",
    ]
    assert len(papers.chosen(["all"])) == len(papers.items())
    with pytest.raises(UsageError, match="'fig99' is unknown"):
        papers.chosen(["fig99"])


def test_the_command_reproduces_what_takes_no_time(tmp_path: Path) -> None:
    words = ["reproduce", "eightbit-speedups", "--out", str(tmp_path), "--json"]
    rows = json.loads(netoffload(*words).stdout)["items"]["eightbit-speedups"]
    verdicts = {row["claim"]: row["verdict"] for row in rows}
    assert verdicts["4 GPUs, NervanaGPU, 32 bits: speed-up, x"] == "arithmetic: agrees"
    assert verdicts["4 GPUs, 32 bits: sum of the printed terms, ms"].startswith("arithmetic: differs: ")


def test_without_a_terminal_a_long_step_says_where_it_is_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, shown = [0.0], list[str]()
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    news = reproduce._seldom(shown.append)
    for now_s[0] in (1, 29, 31, 40, 60, 62):
        news(f"after {now_s[0]} s", 0.0)
    assert shown == ["after 31 s", "after 62 s"]


def test_dettmers_formulas_give_his_printed_digits_but_for_those_that_no_formula_gives() -> None:
    item, made = papers.items()["eightbit-speedups"], eight_bit._speedups(Setting(False))
    differing = {claim.id for claim in item.claims if claim.verdict(made.get(claim.id)) == "differs"}
    rounded = {"96 NervanaGPU 512 8", "96 NervanaGPU 1024 8", "96 convnet2 2048 8", "96 convnet2 12288 32"}
    open_in_table6 = {"sync 2048 32", "sync 2048 8", "sync 12288 8"}
    assert differing == {"penalty 32", "pass 12288 32", "gradient"} | rounded | open_in_table6
    near = {name: printed(item.name)[name] for name in differing - open_in_table6 - {"gradient"}}
    assert {name: made[name] for name in near} == pytest.approx(near, rel=0.03)
    assert made["gradient"] == pytest.approx(2 * (31 * (0.03 + 0.018) + 2 * 0.0072))


def test_table_2_is_that_of_the_bench() -> None:
    theirs = printed("eightbit-table2")
    rows = {f"{distribution} {kind}": row for (distribution, kind), row in PRINTED.items()}
    assert {name: (theirs[f"absolute.{name}"], theirs[f"relative.{name}"]) for name in rows} == rows


def test_terngrads_equations_by_hand() -> None:
    cluster, profile = terngrad.Cluster(1e9, 2e9, 1e8, 0.01), terngrad.Profile(100, 1e8, 1.0)
    between_s = 0.1 * 2 + 0.05 + (0.01 + 1.0) * 3
    assert terngrad.weak_samples_per_s(cluster, profile, 4, 8) == pytest.approx(4 * 8 * 100 / (0.95 + between_s))
    cluster = terngrad.CLUSTERS[terngrad.SLOW]
    profile = profile._replace(batch_s=terngrad.batch_s_of_speedup(cluster, 1e8, 4, 2, 16, 3.0))
    plain, ternary = (terngrad.weak_samples_per_s(cluster, profile, 4, 2, ratio) for ratio in (1.0, 16.0))
    assert ternary / plain == pytest.approx(3.0)
    found = terngrad._fig5({"model": terngrad._throughputs(Setting(False))}).found
    assert found["alexnet"] > found["vgg"] > 1  # the slower network gains more
    assert found["order"] == 1


def test_a_setting_names_its_data_sets() -> None:
    assert runs.settings_of(Setting(False, {"mnist": Path("/m")}), "hdc", "mnist").data_dir == "/m"


def test_the_labs_page_is_made_of_its_records() -> None:
    """``netoffload report docs/lab/records --lab docs/lab/papers.md`` writes it."""
    made = page.lab_page(papers.PAPERS, LAB / "records")
    assert made == (LAB / "papers.md").read_text(encoding="utf-8")
    assert sum(any(map(str.isalnum, word)) for word in made.split()) <= 4500


def test_the_settings_in_words_are_those_of_the_run() -> None:
    setting = Setting(False, {"mnist": Path("/m"), "cifar10": Path("/c")})
    runs.settings_of(setting, "lenet5", "mnist", nodes=2, batch=32, iterations=150, momentum=0.0, learning_rate=0.1)
    runs.settings_of(setting, "cifarnet", "cifar10", "terngrad", sharing="shared", loss_scale=8.0)
    assert setting.trained == [
        "lenet5 on mnist, 2x32 samples, 150 iterations, Sgd(weight_decay=0.0005) at 0.1, Polynomial(iterations=10000)",
        "cifarnet on cifar10, 4x25 samples, 200 iterations, Adam() at 0.0002, constant, loss scale 8, shared data",
    ]


def test_a_step_records_the_settings_of_its_runs(tmp_path: Path) -> None:
    def measure(setting: Setting) -> Json:
        for _ in range(2):
            runs.settings_of(setting, "hdc", "digits", iterations=3)
        setting.say("2 of 3 iterations")
        return {"value": 2.5}

    item, news = dataclasses.replace(made_item(), steps=lambda _full: [Step("a", measure)]), []
    work = Reproduction([item], tmp_path, False, {}, "netoffload reproduce made-item")
    assert work.run(lambda _said, _share: None, lambda *said: news.append(said)) == []
    assert news == [("made-item: a: 2 of 3 iterations", 0.0)]
    (record,) = results.read_steps(tmp_path, "made-item").values()
    assert [text.split(", ")[:3] for text in record.settings] == [["hdc on digits", "4x25 samples", "3 iterations"]]
    assert "3 iterations" in (page.write_item(item, tmp_path) and (tmp_path / "made-item.txt").read_text())


@pytest.mark.slow
def test_a_moving_average_of_the_weights_is_measured_in_their_place() -> None:
    settings = TrainSettings("inc", nodes=2, model="hdc", iterations=12, batch=10, learning_rate=0.05)
    seen: list[float] = []
    said: list[str] = []
    plain = learnt(settings, observe=lambda iteration, _seen: seen.append(iteration), say=said.append)
    assert seen == list(range(1, 13))
    assert said[-1] == "12 of 12 iterations"
    assert learnt(settings, average=1e-12) == plain  # an average that forgets at once is the weights
    assert learnt(settings, average=0.9999)["accuracy"] != plain["accuracy"]
    assert learnt(settings, average=0.9999)["losses"] == plain["losses"]


@pytest.mark.slow
@pytest.mark.parametrize("coder", [None, "inceptionn:bound=8"])
def test_a_run_that_diverges_ends_and_is_recorded(coder: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TrainSettings("inc", nodes=2, model="hdc", iterations=60, batch=10, learning_rate=1e4)
    seen: list[float] = []
    found = learnt(settings, coder, observe=lambda iteration, _seen: seen.append(iteration))
    assert found["diverged"]
    assert len(seen) < 20
    monkeypatch.setattr(inceptionn, "learnt", lambda *_words, **_options: found)
    assert inceptionn._compressed(Setting(True, {"mnist": Path("/m")}), "Base") == found
    assert inceptionn._fig14({"Base": found, "2^-6": found}).found["relative.2^-6"] == 1


def test_clipping_a_gaussian_by_numbers_drawn() -> None:
    values = np.random.default_rng(1).normal(size=2_000_000)
    clipped = np.clip(values, -2.5, 2.5)
    cosine = values @ clipped / np.linalg.norm(values) / np.linalg.norm(clipped)
    length = 100 * (1 - np.linalg.norm(clipped) / np.linalg.norm(values))
    assert terngrad.clipped_gaussian(2.5) == pytest.approx((length, np.degrees(np.arccos(cosine))), abs=0.03)


def test_the_ratios_of_table_3_by_hand() -> None:
    assert inceptionn.table3_ratios(10)["HDC"] == pytest.approx(32 / (2 * 0.92 + 10 * 0.065 + 18 * 0.015))
    alexnet = 32 / (2 * 0.749 + 10 * 0.039 + 18 * 0.211 + 34 * 0.001)
    assert inceptionn.table3_ratios(10)["AlexNet"] == pytest.approx(alexnet)
