"""An experiment file becomes a validated, filled, frozen config. Nothing here imports torch."""
