"""Training: random numbers, the step, the loop, evaluation, guards. It knows no concrete component."""
