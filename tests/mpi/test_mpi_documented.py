"""The documentation's programs that need ranks, on two ranks."""

from pathlib import Path

import pytest

from netoffload.lab.testbed import run_local_ranks
from netoffload.lab.testbed.launch import find_mpiexec
from tests.shared.documented import blocks

pytestmark = [pytest.mark.mpi]


@pytest.mark.skipif(find_mpiexec() is None, reason="mpich is not installed (scripts/setup installs it)")
def test_the_programs_of_the_pages_run(tmp_path: Path) -> None:
    pages: dict[str, str] = {}
    for block in blocks():
        if block.where == "on ranks":
            pages[block.page] = f"{pages.get(block.page, '')}\n{block.instead}\n{block.text}"
    assert set(pages) == {"README.md", "docs/guide/mpi.md"}
    program = tmp_path / "pages.py"
    program.write_text("".join(f"exec(compile({text!r}, {page!r}, 'exec'), {{}})\n" for page, text in pages.items()))
    said: list[bytes] = []
    run_local_ranks(2, [str(program)], timeout_s=60, on_stdout=lambda _, lines: said.append(lines))
    assert b"".join(said).count(b"inline 4000000 ") == 2
