"""Masking strategies, one a file. Contract: registry.contracts.MaskingStrategy."""
