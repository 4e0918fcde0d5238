"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# The first example of a property may compile a kernel, and a busy machine may take its core away: time is no property.
settings.register_profile("netoffload", deadline=None)
settings.load_profile("netoffload")
