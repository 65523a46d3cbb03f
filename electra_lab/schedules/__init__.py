"""Schedules, one a file: numbers that change while training. Contract: registry.contracts.Schedule."""
