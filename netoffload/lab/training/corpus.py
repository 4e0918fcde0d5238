"""The text corpus: the topics of Python's own documentation, which every installation carries for ``help()``.

A character is one of 96: the end of a line, and printable ASCII; any other counts as a question mark. A sample has 128
characters, or the run's own length. The label of each character is the next one. Samples do not overlap, and every
tenth is for testing. Another Python has another text; a record names its Python.
"""

from __future__ import annotations

import importlib
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Int64Array
from netoffload.errors import UsageError
from netoffload.lab.training.dataset import Dataset
from netoffload.lab.training.model_spec import TEXT

MODULE: Final = "pydoc_data.topics"
TEST_EVERY: Final = 10


def read_text() -> str:
    """Return all topics, in the order of their names."""
    try:
        topics: dict[str, str] = importlib.import_module(MODULE).topics
    except (ImportError, AttributeError) as error:
        raise UsageError(f"this Python lacks {MODULE}, the text corpus: install its whole standard library") from error
    return "\n".join(topics[name] for name in sorted(topics))


def encode(text: str) -> Int64Array:
    """Return the number of every character: 0 for a line's end, 1 to 95 for printable ASCII."""
    octets = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64)
    octets[(octets != ord("\n")) & ((octets < ord(" ")) | (octets > ord("~")))] = ord("?")
    return np.where(octets == ord("\n"), 0, octets - ord(" ") + 1)


def load_text(length: int = TEXT.length) -> Dataset:
    """Return the corpus as sequences of ``length`` characters."""
    characters = encode(read_text())
    count = (len(characters) - 1) // length
    samples, labels = (characters[at : at + count * length].reshape(count, length) for at in (0, 1))
    is_test = np.arange(count) % TEST_EVERY == TEST_EVERY - 1
    return Dataset(samples[~is_test], labels[~is_test], samples[is_test], labels[is_test])
