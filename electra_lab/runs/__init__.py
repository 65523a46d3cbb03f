"""Runs: train, resume, reopen; where a run comes from; what a person sees of it."""
