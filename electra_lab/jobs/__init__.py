"""Pre-training, fine-tuning and sweeps: begin, train, save, resume, finish."""
