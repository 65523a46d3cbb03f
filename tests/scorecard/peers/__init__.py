"""The same laws for other trainers, for comparison: `make scorecard-peers`."""
