"""Optimizers, one per file. Contract: registry.contracts.Optimizer."""
