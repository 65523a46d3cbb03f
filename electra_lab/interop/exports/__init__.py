"""Folders that transformers reads, written without it: importing it takes seconds."""
