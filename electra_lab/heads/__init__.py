"""Heads, one a file. Contract: registry.contracts.Head."""
