"""Launchers: where the cells of an ablation run. One file each."""
