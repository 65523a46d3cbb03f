"""Encoders, one a file; a file's name is the name that YAML uses. Contract: registry.contracts.Backbone."""
