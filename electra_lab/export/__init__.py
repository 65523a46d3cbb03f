"""Exports: folders that transformers reads, ONNX."""
