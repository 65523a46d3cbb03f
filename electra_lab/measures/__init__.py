"""Measures, by which the cells of an ablation are compared. One file each."""
