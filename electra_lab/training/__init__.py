"""Training: random numbers, the step, the loop, evaluation. It knows no concrete component."""
