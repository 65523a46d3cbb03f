"""Datasets: labelled examples, one source per file."""
