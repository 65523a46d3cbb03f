"""Packings, one a file. Contract: registry.contracts.Packing."""
