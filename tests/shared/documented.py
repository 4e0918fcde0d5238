"""Reads the documentation's blocks of code: the commands in them, and how a test runs them.

A comment in front of a block says that a test runs it, and how (CONTRIBUTING.md). The output on a page must equal the
command's, except for figures.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
SHELL: Final = ("sh", "bash", "console")

_BLOCK: Final = re.compile(
    r"(?:^<!-- run(?P<where> as root| on ranks)?(?::\s(?P<instead>.*?))? ?-->\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_PLACEHOLDER: Final = re.compile(r"[A-Z]+(?:\.\w+)?(?:,.*)?|\.\.\.|.*/[A-Z]+")


@dataclass(frozen=True)
class Block:
    """A block of code of a page, and the heading above it.

    ``language`` is empty for a drawing or output. It is run ``here``, ``as root`` or ``on ranks``, or not (None), and
    ``instead`` in its stead, or of Python in front of it.
    """

    place: str
    section: str
    language: str
    text: str
    where: str | None
    instead: str

    @property
    def page(self) -> str:
        """The path of the page."""
        return self.place.partition(":")[0]

    def steps(self) -> list[tuple[str, str]]:
        """Return the commands to run, each with the output that the page shows below it."""
        shown = typed(self.text, self.language)
        if not self.instead:
            return shown
        outputs = [output for _, output in shown if output]
        commands = [command for command, _ in typed(self.instead, "sh")]
        return list(zip(commands, [*[""] * (len(commands) - len(outputs)), *outputs], strict=True))


def blocks() -> list[Block]:
    """Return the blocks of all pages, in their order."""
    pages = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
    return [block for name, text in pages.items() for block in blocks_of(text, name)]


def blocks_of(text: str, name: str) -> Iterator[Block]:
    """Return the blocks of a page's text."""
    for found in _BLOCK.finditer(text):
        before = text[: found.start("language")]
        headings = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```$", "", before, flags=re.DOTALL | re.MULTILINE), re.M)
        is_run = found[0].startswith("<!--")
        yield Block(
            place=f"{name}:{before.count(chr(10)) + 1}",
            section=headings[-1] if headings else "",
            language=found["language"],
            text=found["text"],
            where=(found["where"] or " here").strip() if is_run else None,
            instead=(found["instead"] or "").strip(),
        )


def typed(text: str, language: str) -> list[tuple[str, str]]:
    """Return what a reader types, each with the output shown below: in ``console`` behind a prompt, else every line."""
    steps: list[tuple[str, str]] = []
    lines = iter(text.splitlines())
    for line in lines:
        if language == "console":
            if not line.startswith("$ "):
                if steps:
                    steps[-1] = (steps[-1][0], f"{steps[-1][1]}{line}\n")
                continue
            line = line[2:]
        while not _is_whole(line):
            line += "\n" + next(lines)
        steps.append((line, ""))
    return steps


def _is_whole(line: str) -> bool:
    if line.endswith("\\"):
        return False
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return False
    return True


def calls(line: str, program: str = "netoffload") -> list[list[str]]:
    """Return the arguments of every call of a program in a line for the shell, also by ``-m`` or within another."""
    lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=";|&<>()\n")
    lexer.whitespace, lexer.whitespace_split = " \t", True
    found: list[list[str]] = []
    command: list[str] = []
    for word in [*lexer, ";"]:
        if word and set(word) <= set(";|&<>()\n"):
            found += _calls_of(command, program)
            command = []
        else:
            command.append(word)
    return found


def _calls_of(words: list[str], program: str) -> Iterator[list[str]]:
    while words and (words[0] in ("sudo", "$") or re.fullmatch(r"\w+=\S*", words[0])):
        words = words[1:]
    for index, word in enumerate(words):
        is_command = index == 0 or words[index - 1] == "-m" or words[0] in ("mpiexec", "torchrun")
        if Path(word).name == program and is_command:
            yield words[index + 1 :]


def spans(text: str) -> list[str]:
    """Return what a page quotes as code within its sentences and tables."""
    text = re.sub(r"<!--.*?-->", "", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), flags=re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def has_placeholders(words: list[str]) -> bool:
    """Say whether a reader has to put something else in the place of a word: ``DIR``, ``FILE.npz``, ``...``."""
    return any(_PLACEHOLDER.fullmatch(word) for word in words)


def is_like(shown: str, said: str) -> bool:
    """Say whether output is what a page shows: the same words, any figures, and any lines for a line ``...``."""
    pattern = ""
    for line in _shapes(shown):
        pattern += r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _shapes(said))) is not None


def _shapes(text: str) -> list[str]:
    figure = re.compile(r"\d[\d,.]*(?<![,.])( [kMG](?=b/s))?")
    lines = (figure.sub(lambda found: "0 " if found[1] else "0", " ".join(line.split())) for line in text.splitlines())
    return [line for line in lines if set(line) - {"─"}]
