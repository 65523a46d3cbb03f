"""Runs: the run directory, where it came from, what it found."""
