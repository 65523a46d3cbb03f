"""From an experiment file to a validated, complete, frozen config. Nothing here imports torch."""
