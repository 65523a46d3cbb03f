"""Sweeps: the file, its plan, the cells, the run."""
