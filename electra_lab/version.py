"""The version of electra_lab. Imports nothing."""

__version__ = "0.1.0"
