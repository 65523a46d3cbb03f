"""Storage: locks, atomic files, checkpoints, run directories, ablation folders."""
