"""Trained models in files: read from a run, a fine-tuning, an export or the hub, and written for transformers."""
