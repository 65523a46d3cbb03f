"""Downstream tasks, one per file."""
