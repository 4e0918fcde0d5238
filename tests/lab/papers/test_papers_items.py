"""The papers' items as data, steps that are done once, and the pages made from records."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from netoffload.errors import RunError, UsageError
from netoffload.lab import papers, results
from netoffload.lab.bench.eight_bit import PRINTED
from netoffload.lab.papers import eight_bit, page, terngrad, web
from netoffload.lab.papers.item import HOLDS, Claim, Item, Json, Paper, Reading, Setting, Standing, Step, printed
from netoffload.lab.papers.reproduction import Reproduction
from netoffload.lab.reports import Panel, Series
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
        Claim("a", "near", 2.4, "x", "Table 1", within=0.2),
        Claim("b", "far", 9.0, "x", "Table 1", within=0.2),
        Claim("c", "no <way>", 1.0, "x", "Fig. 1", Standing.NOT_HERE, why="no GPU"),
        Claim("d", "is so", 1.0, HOLDS, "Fig. 2", Standing.SCALED),
    )


def made_item(*keys: str, data: str | None = None, name: str = "made-item") -> Item:
    def steps(_is_full: bool) -> list[Step]:
        return [Step.of(lambda _setting, key: measured(key), key, data=data) for key in keys]

    def read(values: Mapping[str, Json]) -> Reading:
        found = {key: value["value"] for key, value in values.items()}
        panel = Panel("bars", "what", "unit", (Series("here", tuple(found), tuple(found.values())),))
        return Reading(found, [panel] if found else [], ["It was measured."])

    return MadeItem(name, "A made item", "Smaller.", steps, read)


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
    assert (record.command, record.effort, record.value) == (
        "netoffload reproduce made-item",
        "quick",
        {"value": 2.5},
    )
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
    damaged = {'{"format": 8}': "has format 8", '{"format": 7}': "lacks keys", "[]": "is not a record", "{": "not JSON"}
    for line, said in damaged.items():
        path.write_text(line + "\n")
        with pytest.raises(UsageError, match=rf"made-item.jsonl:1 .*{said}"):
            run(made_item("a"), tmp_path)


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
    reading = page.write_item(item, tmp_path)
    verdicts = [row.verdict for row in page.rows(item, reading)]
    assert verdicts == ["agrees", "differs", "not reproducible here: no GPU", "holds"]
    assert "| near | Table 1 | x | 2.4 | 2.5 | agrees |" in (tmp_path / "made-item.txt").read_text()
    assert (tmp_path / "made-item.svg").exists()
    assert Claim("a", "near", 2.4, "x", "Table 1").verdict(None) == "missing"


def test_the_page_is_whole(tmp_path: Path) -> None:
    items = [made_item("a"), made_item("a", name="another")]
    for item in items:
        run(item, tmp_path)
    text = web.text([Paper("made", "Somebody", items)], tmp_path)
    assert "<svg" in text
    assert "no &lt;way&gt;" in text
    assert not re.search(r"<(script|link|img)|src=|@import", text)
    assert len(set(found := re.findall(r'\bid="([^"]+)"', text))) == len(found)


@pytest.mark.parametrize("name", papers.items())
def test_items_are_read_from_nothing_and_say_why_not(name: str) -> None:
    item = papers.items()[name]
    assert item.read({}).found == {} or name.endswith("model")
    assert {claim.standing for claim in item.claims} & {Standing.COMPARABLE, Standing.SCALED}
    assert len({claim.id for claim in item.claims}) == len(item.claims)
    assert all(claim.why for claim in item.claims if claim.standing is Standing.NOT_HERE)
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
    assert verdicts["4 GPUs, NervanaGPU, 32 bits: speed-up"] == "agrees"
    assert verdicts["4 GPUs, 32 bits: sum of the printed terms"] == "differs"


def test_dettmers_formulas_give_his_printed_digits_but_for_those_that_no_formula_gives() -> None:
    item, made = papers.items()["eightbit-speedups"], eight_bit._speedups(Setting(False))
    differing = {claim.id for claim in item.claims if claim.verdict(made.get(claim.id)) == "differs"}
    rounded = {"96 NervanaGPU 512 8", "96 NervanaGPU 1024 8", "96 convnet2 2048 8", "96 convnet2 12288 32"}
    from_table5 = {claim.id for claim in item.claims if claim.id.startswith("sync")}
    assert differing == {"penalty 32", "pass 12288 32"} | rounded | from_table5
    near = {name: value for name, value in printed(item.name).items() if name in differing - from_table5}
    assert {name: made[name] for name in near} == pytest.approx(near, rel=0.03)


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
    claims = {claim.id: claim.verdict(found[claim.id]) for claim in papers.items()["terngrad-fig5"].claims}
    assert (claims["up"], claims["bits"], claims["order"]) == ("agrees", "agrees", "holds")


def test_a_setting_names_its_data_sets() -> None:
    from netoffload.lab.papers.runs import settings_of

    assert settings_of(Setting(False, {"mnist": Path("/m")}), "hdc", "mnist").data_dir == "/m"


def test_the_labs_page_is_made_of_its_records() -> None:
    """``netoffload report docs/lab/records --lab docs/lab/papers.md`` writes it."""
    made = page.lab_page(papers.PAPERS, LAB / "records")
    assert made == (LAB / "papers.md").read_text(encoding="utf-8")
