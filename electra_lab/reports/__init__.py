"""Reports: charts, statistics, the page of a run, the page of an ablation. They read files, and need no torch."""
