"""Tokenizer trainers, one a file. Contract: registry.contracts.TokenizerTrainer."""
