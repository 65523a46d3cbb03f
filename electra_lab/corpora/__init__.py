"""Corpora, one a file. Contract: registry.contracts.Corpus."""
