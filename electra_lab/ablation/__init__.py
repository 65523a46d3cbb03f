"""Ablations: the plan, its cells, their measures, statistics and the report."""
