"""Tests, and the programs that check for hours what a test checks for seconds."""
