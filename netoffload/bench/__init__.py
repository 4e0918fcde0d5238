"""Experiments that measure."""
