"""Trained models as they are read: from a run, an export, a Hugging Face folder or the hub."""
