"""The results as one self-contained HTML page, with SVG figures inside, which also fits a phone."""

import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from netoffload.lab.papers import page
from netoffload.lab.papers.item import Item, Kind, Paper
from netoffload.lab.reports.panels import draw_panels

STYLE: Final = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; margin: 0 auto; padding: 1rem; max-width: 1200px; }
h1 { font-size: 1.5rem; line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1.05rem; margin: 2rem 0 .5rem; } p { max-width: 75ch; }
nav ul { columns: 20rem; padding-left: 1.2rem; } a { color: #0072b2; }
figure { margin: 1rem 0; } figure svg { width: 100%; height: auto; max-width: 1150px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th, td { text-align: left; padding: .25rem .5rem; border-bottom: 1px solid #eee; vertical-align: top; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.agrees td:last-child, .holds td:last-child { color: #00704f; }
.differs td:last-child, .not td:last-child { color: #b34700; }
.here td { color: #777; } .from { color: #666; font-size: .85rem; } summary { cursor: pointer; margin: .5rem 0; }
@media (max-width: 600px) {
  thead { display: none; } tr { display: block; padding: .4rem 0; border-bottom: 1px solid #ccc; }
  td { display: block; border: 0; padding: .05rem 0; } td.n { text-align: left; white-space: normal; }
  td[data-h]:not(:empty)::before { content: attr(data-h) ": "; color: #777; }
  figure { overflow-x: auto; } figure svg { min-width: var(--readable); }
}
"""
CLASSES: Final = {"agrees": "agrees", "holds": "holds", "differs": "differs", "does not hold": "not"}
NUMBERS: Final = page.HEADINGS[2:4]
READABLE: Final = 0.85  # least pixels per point of a figure; with fewer, its letters are too small


def text(papers: Sequence[Paper], folder: Path) -> str:
    """Return the page of all records in a folder; items without a record are shown as missing."""
    every = [item for paper in papers for item in paper.items]
    counts = "".join(
        f"<li>{kind}: {', '.join(f'{count} {verdict}' for verdict, count in of.items())}</li>"
        for kind, of in page.tally(every, folder).items()
        if of
    )
    links = "".join(
        f'<li><a href="#{item.name}">{html.escape(f"{item.name}: {item.title}")}</a></li>' for item in every
    )
    body = "".join(
        f"<h2>{html.escape(paper.citation)}</h2><p>{html.escape(paper.judgement)}</p>"
        + "".join(_section(item, folder) for item in paper.items)
        for paper in papers
    )
    title = "The papers' tables and figures, theirs beside ours"
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>netoffload: {title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>"
        f"<ul>{counts}</ul><nav><ul>{links}</ul></nav>{body}</body></html>\n"
    )


def _section(item: Item, folder: Path) -> str:
    reading, kept = page.read(item, folder)
    remarks = "".join(f"<li>{html.escape(remark)}</li>" for remark in reading.remarks)
    said = html.escape(f"{item.setting}{page.trained(kept)}{page.cost(kept)}")
    figure = ""
    if reading.panels:
        drawn = folder / f"{item.name}.svg"
        draw_panels(reading.panels, item.title, drawn)
        svg = drawn.read_text(encoding="utf-8")
        wide = re.search(r'viewBox="0 0 ([\d.]+)', svg)
        readable = READABLE * float(wide[1]) if wide else 0
        figure = f'<figure style="--readable: {readable:.0f}px">{inline_svg(svg, item.name)}</figure>'
    return (
        f'<section id="{item.name}"><h3>{html.escape(f"{item.name}: {item.title}")}</h3>'
        f"<p>{said}</p>{figure}{_table(item, page.rows(item, reading, kept))}"
        f'<ul>{remarks}</ul><p class="from">'
        f"{html.escape(page.origin(kept).replace('`', '')) if kept else ''}</p></section>"
    )


def _table(item: Item, rows: Sequence[page.Row]) -> str:
    lines: dict[bool, list[str]] = {True: [], False: []}
    for claim, row in zip(item.claims, rows, strict=True):
        is_here = claim.kind is not Kind.NOT_HERE
        name = CLASSES.get(row.verdict.split(": ")[1], "") if is_here else "here"
        lines[is_here].append(f'<tr class="{name}">{"".join(map(_cell, page.HEADINGS, row))}</tr>')
    cells = "".join(f"<th{_right(heading)}>{heading}</th>" for heading in page.HEADINGS)
    shown, hidden = (
        f'<div class="wide"><table><thead><tr>{cells}</tr></thead>{"".join(of)}</table></div>' if of else ""
        for of in (lines[True], lines[False])
    )
    if hidden:
        summary = f"{len(lines[False])} printed values that are not reproducible here, and why"
        hidden = f"<details><summary>{summary}</summary>{hidden}</details>"
    return shown + hidden


def _cell(heading: str, text: str) -> str:
    label = f' data-h="{heading}"' if heading not in ("claim", "") else ""
    return f"<td{_right(heading)}{label}>{html.escape(text)}</td>"


def _right(heading: str) -> str:
    return ' class="n"' if heading in NUMBERS else ""


def inline_svg(svg: str, name: str) -> str:
    """Return a drawing as a part of a page: without its declarations, and with ids that ``name`` makes unique."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    return re.sub(r'(url\(|href=")#([^")]+)', rf"\1#{name}-\2", svg)
