"""Generators that are not networks, one per file. Contract: registry.contracts.Generator."""
