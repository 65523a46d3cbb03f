"""Fine-tuning: from a pre-trained model and a task to a result."""
