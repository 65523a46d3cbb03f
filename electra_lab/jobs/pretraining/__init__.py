"""Pre-training: one run."""
