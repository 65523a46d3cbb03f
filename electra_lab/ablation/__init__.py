"""Ablations: the file, its plan, the cells, the run. The pages are in electra_lab/reports."""
