"""Generators that are no networks, one a file. Contract: registry.contracts.Generator."""
