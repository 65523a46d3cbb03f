"""Results of runs and sweeps: numbers, intervals, comparisons. No text, no HTML."""
