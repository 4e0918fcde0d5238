"""Every printed value of ``claims.csv`` is taken from the papers' texts and compared, where they are at hand.

``NETOFFLOAD_PAPERS`` names a folder with a text of each paper: eight-bit.txt, inceptionn.txt, pqasgd.txt, terngrad.txt,
thresholded.txt. Values of tables are taken by row and column. Values of prose must stand in the section that the claim
names as its place.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from netoffload.lab import papers
from netoffload.lab.papers.eight_bit import MESSAGES
from netoffload.lab.papers.item import HOLDS, Kind, Paper

FOLDER: Final = os.environ.get("NETOFFLOAD_PAPERS", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="NETOFFLOAD_PAPERS names no folder with the papers' texts")

NUMBER: Final = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
HEADING: Final = re.compile(
    r"^#*\s*(?:(\d+(?:\.\d+)*)\.?\s+[A-Z]|([IVX]+)\.(?:\s+[A-Z]|$)|([A-D])\.\s+[A-Z]|(Abstract)$)"
)
MODELS: Final = ("AlexNet", "HDC", "ResNet-50", "VGG-16")
Values = tuple[float, ...]
Taken = Iterator[tuple[str, Sequence[float]]]


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def text_of(paper: str) -> str:
    return (Path(FOLDER) / f"{paper}.txt").read_text(encoding="utf-8")


def between(text: str, start: str, end: str) -> str:
    begin = text.index(start) + len(start)
    return text[begin : text.index(end, begin)]


def sections(text: str) -> dict[str, str]:
    """Return the text of every section by its number: 5.1.3, or VIII-A."""
    found, chapter, current = {"abstract": ""}, "", "abstract"
    for line in text.splitlines():
        if heading := HEADING.match(line):
            number, roman, letter, _ = heading.groups()
            chapter = roman or chapter
            current = number or roman or (f"{chapter}-{letter}" if letter and chapter else "abstract")
        found[current] = found.get(current, "") + line + "\n"
    return found


def columns(text: str, caption: str) -> list[list[str]]:
    """Return the cells of the Markdown table above a caption, row by row without the heading."""
    lines = text[: text.index(caption)].splitlines()
    first = max(at for at, line in enumerate(lines) if line.startswith("| :-"))
    return [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines[first + 1 :] if line.startswith("|")]


def of_inceptionn(text: str) -> Taken:
    table2 = between(text, "TABLE II:", "of datacenter")
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in table2.splitlines() if line.count("\t") == 8}
    steps = (
        "Forward pass",
        "Backward pass",
        "GPU copy",
        "Gradient sum",
        "Communicate",
        "Update",
        "Total training time",
    )
    for place, model in enumerate(MODELS):
        seconds, shares = ([numbers(rows[step][2 * place + side]) for step in steps] for side in (0, 1))
        own = [0, 1, 3, 4, 5] if model == "HDC" else list(range(7))
        yield f"inceptionn-table2 {model}.s", [seconds[at][0] for at in own]
        own = [0, 1, 3, 5] if model == "HDC" else list(range(6))
        yield f"inceptionn-table2 {model}.share", [shares[at][0] for at in own]
        if model == "HDC":
            yield "inceptionn-table2 communicate", shares[4]
            yield "inceptionn-table2 total", seconds[6]
    table3 = re.findall(r"([\d.]+)%", between(text, "TABLE III:", "of gradients and INC"))
    cases = [(model, bound) for model in MODELS for bound in (10, 8, 6)]
    for (model, bound), row in zip(cases, zip(*[map(float, table3)] * 4, strict=True), strict=True):
        if model == "HDC":
            yield from (
                (f"inceptionn-fig14 table3.{bound}.{bits}-bit", [row[at]]) for at, bits in enumerate((2, 10, 18))
            )
        else:
            yield f"inceptionn-fig14 table3.{model}.{bound}", row


def of_terngrad(text: str) -> Taken:
    table1 = re.findall(r"\t(\d\d\.\d\d)%", between(text, "Table 1:", "4 Experiments"))
    names = [f"{workers}.{coder}" for workers in (2, 16) for coder in ("floating", "TernGrad")]
    yield from ((f"terngrad-table1 {name}", [float(one)]) for name, one in zip(names, table1, strict=True))
    claims = [claim.id for claim in papers.items()["terngrad-table1"].claims]
    table2 = re.findall(r"([\d.]+)%\t([\d.]+)%", between(text, "Table 2:", "DR: dropout"))
    for name, pair in zip([name for name in claims if name.startswith("alexnet.")], table2, strict=True):
        yield f"terngrad-table1 {name}", list(map(float, pair))
    table3 = re.findall(r"([\d.]+)%", between(text, "Table 3:", "the capability"))
    for name, one in zip([name for name in claims if name.startswith("googlenet.")], table3, strict=True):
        yield f"terngrad-table1 {name}", [float(one)]


def of_thresholded(text: str) -> Taken:
    for method, start, number in (("wgt", "3.2 Whole", 1), ("bgt", "3.3 Bin", 2), ("qgt", "3.4 Quant", 3)):
        rows = re.findall(r"(\d\d\.\d{4})\s+(\d+\.\d\d)\s+(\d\.\d{4})", between(text, start, f"Table {number}:"))
        for column, values in zip(("", ".gb", ".ratio"), zip(*rows, strict=True), strict=True):
            yield f"thresholded-tables nin.{method}{column}", list(map(float, values))


def of_eight_bit(text: str) -> Taken:
    table2 = columns(text, "*Table 2:")
    distribution, types = "", {"dynamic tree": "dynamic", "linear quant": "linear", "static tree": "static"}
    for name, kind, absolute, relative in table2:
        distribution = distribution if name == "-" else name
        short = types.get(kind.removeprefix("8-bit "), "mantissa")
        if way := re.match(r"MNIST (model|data)", distribution):
            yield f"eightbit-table2 absolute.{way[1]}.{short}", numbers(absolute)
            for layer, value in enumerate(numbers(relative), 1):
                yield f"eightbit-table2 {way[1]}.8bit-{short}.{layer}", [value]
        else:
            yield f"eightbit-table2 absolute.{distribution} {short}", numbers(absolute)
            yield f"eightbit-table2 relative.{distribution} {short}", numbers(relative)
    item = "eightbit-speedups"
    table3 = [[numbers(cell) for cell in row[1:]] for row in columns(text, "*Table 3:")]
    for at, claim in enumerate(claim.id for claim in papers.items()[item].claims if claim.id.startswith("table3")):
        yield f"{item} {claim}", [value for row in table3 for value in row[at]]
    table4 = columns(text, "*Table 4:")
    yield f"{item} table4", [value for row in table4[:5] for value in numbers(row[1])]
    totals = next(row for row in table4 if row[0].startswith("Total fc"))
    yield from ((f"{item} {name}", numbers(cell)) for name, cell in zip(("fc", "parallel fc"), totals[1:], strict=True))
    for batch, row6, row7 in zip(MESSAGES, columns(text, "*Table 6:"), columns(text, "*Table 7:"), strict=True):
        for at, (what, bits) in enumerate((what, bits) for what in ("sync", "pass") for bits in (32, 8)):
            yield f"{item} {what} {batch} {bits}", numbers(row6[2 + at])
        for at, (kernels, bits) in enumerate((kind, bits) for kind in ("NervanaGPU", "convnet2") for bits in (32, 8)):
            yield f"{item} 96 {kernels} {batch} {bits}", numbers(row7[1 + at])
    for row1 in columns(text, "*Table 1:"):
        gpus, size, *of = numbers(" ".join(row1))
        sub_batch = 2048 if size == 2056 else int(size)  # the text prints both
        for bits, value in zip((32, 8), of, strict=True):
            key = f"4 NervanaGPU {bits}" if gpus == 4 else f"96 NervanaGPU {sub_batch} {bits}"
            yield f"{item} {key}", [value]


TABLES: Final = {
    "inceptionn": of_inceptionn,
    "terngrad": of_terngrad,
    "pqasgd": lambda _text: iter(()),
    "thresholded": of_thresholded,
    "eight-bit": of_eight_bit,
}


@pytest.mark.parametrize("paper", papers.PAPERS, ids=lambda paper: paper.name)
def test_every_printed_value_stands_in_the_paper(paper: Paper) -> None:
    name = "eight-bit" if paper.name == "eightbit" else paper.name
    text = text_of(name)
    taken: dict[str, list[Values]] = {}
    for key, values in TABLES[name](text):
        taken.setdefault(key, []).append(tuple(values))
    by_section = {number: set(numbers(part)) for number, part in sections(text).items()}
    wrong = []
    for item in paper.items:
        for claim in item.claims:
            if not claim.printed or (claim.unit == HOLDS and claim.kind is not Kind.NOT_HERE):
                continue
            if (key := f"{item.name} {claim.id}") in taken:
                of_tables = taken.pop(key)
                wrong += [f"{key}: {claim.printed}, not {one}" for one in of_tables if one != claim.printed]
                continue
            place = claim.place.removeprefix("section ").replace(",", " ").split()[0]
            standing = by_section.get(place, set())
            missing = [one for one in claim.printed if not {abs(one), round(abs(one) / 100, 6)} & standing]
            wrong += [f"{key}: {missing} do not stand in {claim.place}"] if missing else []
    assert not wrong, "\n".join(wrong)
    assert not taken, f"values of tables that no claim has: {sorted(taken)}"
