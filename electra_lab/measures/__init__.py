"""Measures: what the cells of an ablation are compared by. One file each."""
