"""Training: random numbers, the step, the loop, checkpoints, evaluation. Knows no concrete component."""
