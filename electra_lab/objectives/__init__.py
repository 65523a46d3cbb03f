"""Objectives, one a file. Contract: registry.contracts.Objective."""
